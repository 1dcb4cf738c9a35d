//! Writing SVG: elements, escaped text, and how wide text is.
//!
//! Colours are given twice: as attributes, in light colours, for programs that draw a file on
//! white; and as classes, which the style sheet of the report replaces on dark screens.
//!
//! * `SVG-1` Whatever text goes in, the document stays well-formed.

use std::fmt::Write;

/// A drawing that grows.
#[derive(Debug, Default)]
pub struct Svg {
    body: String,
}

/// Where text stands relative to its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    /// It begins there.
    Start,
    /// It is centred there.
    Middle,
    /// It ends there.
    End,
}

/// How a text looks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ink<'a> {
    /// Class, replaced by the style sheet on dark screens.
    pub class: &'a str,
    /// Colour on white.
    pub colour: &'a str,
}

/// Text of the first rank.
pub const STRONG: Ink<'static> = Ink {
    class: "t1",
    colour: "#1d2328",
};
/// Text of the second rank.
pub const QUIET: Ink<'static> = Ink {
    class: "t2",
    colour: "#5c666f",
};
/// Lines of the grid.
pub const GRID: Ink<'static> = Ink {
    class: "g",
    colour: "#e4e7ea",
};
/// Lines of the axes.
pub const AXIS: Ink<'static> = Ink {
    class: "ax",
    colour: "#9aa3ab",
};
/// What the papers measured.
pub const PAPER: Ink<'static> = Ink {
    class: "pp",
    colour: "#7b838b",
};

/// Fonts, in order of preference.
pub const FONTS: &str =
    "'Open Sans', system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif";

impl Svg {
    /// A straight line.
    pub fn line(
        &mut self,
        (x1, y1): (f64, f64),
        (x2, y2): (f64, f64),
        ink: Ink<'_>,
        width: f64,
        dash: &str,
    ) {
        let Ink { class, colour } = ink;
        let dash = dash_attribute(dash);
        self.put(format_args!(
            "<line x1='{x1:.1}' y1='{y1:.1}' x2='{x2:.1}' y2='{y2:.1}' class='{class} s' \
             stroke='{colour}' stroke-width='{width}'{dash}/>"
        ));
    }

    /// A line through points.
    pub fn path(&mut self, points: &[(f64, f64)], ink: Ink<'_>, width: f64, dash: &str) {
        let steps: Vec<String> = points
            .iter()
            .map(|(x, y)| format!("{x:.1} {y:.1}"))
            .collect();
        let (steps, dash) = (steps.join("L"), dash_attribute(dash));
        let Ink { class, colour } = ink;
        self.put(format_args!(
            "<path d='M{steps}' class='{class} s' fill='none' stroke='{colour}' \
             stroke-width='{width}' stroke-linejoin='round' stroke-linecap='round'{dash}/>"
        ));
    }

    /// A closed shape through points, filled or hollow, with a text that appears under the pointer.
    pub fn shape(&mut self, points: &[(f64, f64)], ink: Ink<'_>, is_hollow: bool, title: &str) {
        let steps: Vec<String> = points
            .iter()
            .map(|(x, y)| format!("{x:.1} {y:.1}"))
            .collect();
        let steps = steps.join("L");
        self.mark("path", format_args!("d='M{steps}Z'"), ink, is_hollow, title);
    }

    /// A disc, filled or hollow, with a text that appears under the pointer.
    pub fn disc(
        &mut self,
        (x, y): (f64, f64),
        radius: f64,
        ink: Ink<'_>,
        is_hollow: bool,
        title: &str,
    ) {
        let geometry = format_args!("cx='{x:.1}' cy='{y:.1}' r='{radius}'");
        self.mark("circle", geometry, ink, is_hollow, title);
    }

    fn mark(
        &mut self,
        element: &str,
        geometry: std::fmt::Arguments<'_>,
        ink: Ink<'_>,
        is_hollow: bool,
        title: &str,
    ) {
        let Ink { class, colour } = ink;
        let (kind, fill) = if is_hollow {
            ("h", "#ffffff")
        } else {
            ("f", colour)
        };
        let title = escape(title);
        self.put(format_args!(
            "<{element} {geometry} class='{class} {kind}' fill='{fill}' stroke='{colour}' \
             stroke-width='1.6'><title>{title}</title></{element}>"
        ));
    }

    /// A line of text.
    pub fn text(
        &mut self,
        (x, y): (f64, f64),
        text: &str,
        anchor: Anchor,
        size: f64,
        ink: Ink<'_>,
    ) {
        self.styled_text((x, y), text, anchor, size, ink, "");
    }

    /// A line of text in the heavier weight.
    pub fn heading(&mut self, (x, y): (f64, f64), text: &str, size: f64) {
        self.styled_text(
            (x, y),
            text,
            Anchor::Start,
            size,
            STRONG,
            " font-weight='600'",
        );
    }

    fn styled_text(
        &mut self,
        (x, y): (f64, f64),
        text: &str,
        anchor: Anchor,
        size: f64,
        ink: Ink<'_>,
        style: &str,
    ) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let (Ink { class, colour }, text) = (ink, escape(text));
        self.put(format_args!(
            "<text x='{x:.1}' y='{y:.1}' class='{class} f' fill='{colour}' font-size='{size}' \
             text-anchor='{anchor}'{style}>{text}</text>"
        ));
    }

    /// Puts a drawing inside, moved.
    pub fn put_at(&mut self, (x, y): (f64, f64), inner: &Svg) {
        let body = &inner.body;
        self.put(format_args!(
            "<g transform='translate({x:.1} {y:.1})'>{body}</g>"
        ));
    }

    /// The element to put into a page; `said` is read out to those who cannot see it.
    pub fn element(&self, width: f64, height: f64, said: &str) -> String {
        let (said, body) = (escape(said), &self.body);
        format!(
            "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width:.0} {height:.0}' \
             width='{width:.0}' height='{height:.0}' role='img' aria-label='{said}' \
             font-family=\"{FONTS}\">{body}</svg>"
        )
    }

    /// A document that stands alone, on white, or on black where the reader prefers it.
    pub fn document(&self, width: f64, height: f64, said: &str, style: &str) -> String {
        let ground = format!(
            "<style>{style}</style><rect class='bg' width='{width:.0}' height='{height:.0}' \
             fill='#ffffff'/>"
        );
        let element = self.element(width, height, said);
        let inside = element.find('>').map_or(element.len(), |at| at + 1);
        format!(
            "<?xml version='1.0' encoding='UTF-8'?>\n{}{ground}{}\n",
            &element[..inside],
            &element[inside..]
        )
    }

    fn put(&mut self, what: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = self.body.write_fmt(what);
    }
}

fn dash_attribute(dash: &str) -> String {
    match dash {
        "" => String::new(),
        dash => format!(" stroke-dasharray='{dash}'"),
    }
}

/// Text that is safe between tags and in quoted attributes (SVG-1). What XML cannot hold is left
/// out.
pub fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe += "&amp;",
            '<' => safe += "&lt;",
            '>' => safe += "&gt;",
            '"' => safe += "&quot;",
            '\'' => safe += "&#39;",
            '\t' | '\n' => safe.push(' '),
            '\u{0}'..='\u{1f}' | '\u{7f}' | '\u{fffe}' | '\u{ffff}' => {}
            letter => safe.push(letter),
        }
    }
    safe
}

/// About how wide a text is at this size: letters of Open Sans, in classes.
pub fn text_width(text: &str, size: f64) -> f64 {
    let width = |letter: char| match letter {
        'i' | 'j' | 'l' | 'I' | '.' | ',' | ':' | ';' | '\'' | '|' | '!' | ' ' | '(' | ')' => 0.28,
        'f' | 't' | 'r' | '-' | '/' => 0.38,
        'm' | 'w' | 'M' | 'W' | '—' => 0.86,
        'A'..='Z' | '+' | '±' | '×' => 0.64,
        _ => 0.57,
    };
    text.chars().map(width).sum::<f64>() * size
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_text_is_well_formed(text in any::<String>()) {
            let mut svg = Svg::default();
            svg.text((1.0, 2.0), &text, Anchor::End, 12.0, STRONG);
            svg.disc((1.0, 2.0), 3.0, QUIET, true, &text);
            let document = svg.document(10.0, 10.0, &text, "");
            // SVG-1
            prop_assert!(roxmltree::Document::parse(&document).is_ok(), "{document}");
        }
    }
}
