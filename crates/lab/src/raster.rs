//! From SVG to PNG, with the font that is bundled: the same picture on every machine.
//!
//! The font is Open Sans, licensed as `fonts/LICENSE` says, cut to the letters of western European
//! languages.

use resvg::{tiny_skia, usvg};
use std::sync::Arc;

const REGULAR: &[u8] = include_bytes!("../fonts/OpenSans-Regular-Latin.ttf");
const SEMIBOLD: &[u8] = include_bytes!("../fonts/OpenSans-Semibold-Latin.ttf");

/// Dots for each unit of the drawing.
const DENSITY: f32 = 2.0;

/// Why a drawing has no picture.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is no SVG.
    #[error("the drawing cannot be read: {0}")]
    Svg(#[from] usvg::Error),
    /// It has no size, or one beyond all memory.
    #[error("the drawing is {width} × {height}; no picture has this size")]
    Size {
        /// In its own units.
        width: f32,
        /// In its own units.
        height: f32,
    },
    /// The picture cannot be encoded.
    #[error("the picture cannot be encoded: {0}")]
    Png(String),
}

/// Draws an SVG document as PNG, two dots to the unit.
///
/// # Errors
/// When `svg` is no SVG, or too large for memory.
pub fn png(svg: &str) -> Result<Vec<u8>, Error> {
    let mut fonts = usvg::fontdb::Database::new();
    fonts.load_font_data(REGULAR.to_vec());
    fonts.load_font_data(SEMIBOLD.to_vec());
    let family = fonts
        .faces()
        .next()
        .and_then(|face| Some(face.families.first()?.0.clone()));
    let family = family.unwrap_or_default();
    fonts.set_sans_serif_family(family.clone());
    let options = usvg::Options {
        font_family: family,
        fontdb: Arc::new(fonts),
        ..usvg::Options::default()
    };
    let tree = usvg::Tree::from_str(svg, &options)?;
    let (width, height) = (tree.size().width(), tree.size().height());
    let dots = |units: f32| (units * DENSITY).ceil() as u32;
    let picture = tiny_skia::Pixmap::new(dots(width), dots(height));
    let mut picture = picture.ok_or(Error::Size { width, height })?;
    let scale = tiny_skia::Transform::from_scale(DENSITY, DENSITY);
    resvg::render(&tree, scale, &mut picture.as_mut());
    picture
        .encode_png()
        .map_err(|error| Error::Png(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_drawn_with_the_bundled_font() {
        let drawing = |text: &str| {
            format!(
                "<svg xmlns='http://www.w3.org/2000/svg' width='60' height='20'>\
                 <text x='2' y='15' font-family=\"'Open Sans', sans-serif\">{text}</text></svg>"
            )
        };
        let (some, other) = (
            png(&drawing("64 KB")).unwrap(),
            png(&drawing("    ")).unwrap(),
        );
        assert!(some.starts_with(b"\x89PNG") && some.len() > other.len() + 200);
        assert!(
            png("<svg")
                .unwrap_err()
                .to_string()
                .contains("cannot be read")
        );
    }
}
