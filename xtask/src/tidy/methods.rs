//! How large a type is.
//!
//! A type has at most [`METHODS_MAX`] methods, in `impl` blocks of at most [`FILES_MAX`] files, and
//! a struct at most [`FIELDS_MAX`] fields. Methods of traits, tests, and what a macro writes do not
//! count. Where more methods or fields belong together, the header of the file that declares the
//! type (of its first `impl`, where a macro declares it) says why, in a line that begins
//! `TYPE has more than 40 methods: ` or `TYPE has more than 20 fields: `.

use std::collections::{BTreeMap, BTreeSet};

use super::imports::{Crate, attributes, is_test};
use xtask::workspace::Source;

const METHODS_MAX: usize = 40;
const FILES_MAX: usize = 4;
const FIELDS_MAX: usize = 20;

/// What is inherent of one type.
#[derive(Default)]
struct Inherent {
    method_count: usize,
    files: BTreeSet<String>,
}

/// The types of the crate whose root is the file `root` that are too large.
pub fn check_methods(sources: &[Source], root: &str) -> Result<Vec<String>, String> {
    let krate = Crate::load(sources, root)?;
    let mut types: BTreeMap<(Option<String>, String), Inherent> = BTreeMap::new();
    let mut found = Vec::new();
    for file in &krate.files {
        for item in items(&file.code.items) {
            match item {
                syn::Item::Impl(one) if one.trait_.is_none() => {
                    let declared = krate.declared(file, &one.self_ty);
                    let inherent = types.entry(declared).or_default();
                    inherent.method_count += methods(one);
                    inherent.files.insert(file.path.clone());
                }
                syn::Item::Struct(one) => {
                    let (name, count) = (one.ident.to_string(), fields(one));
                    if count > FIELDS_MAX && !is_excused(&file.code, &name, "fields", FIELDS_MAX) {
                        found.push(too_many(&file.path, &name, count, "fields", FIELDS_MAX));
                    }
                }
                _ => {}
            }
        }
    }
    for ((declared, name), inherent) in &types {
        let Some(path) = declared.as_ref().or(inherent.files.first()) else {
            continue;
        };
        let count = inherent.method_count;
        let declaring = krate.files.iter().find(|file| file.path == *path);
        let is_excused =
            || declaring.is_some_and(|file| is_excused(&file.code, name, "methods", METHODS_MAX));
        if count > METHODS_MAX && !is_excused() {
            found.push(too_many(path, name, count, "methods", METHODS_MAX));
        }
        if inherent.files.len() > FILES_MAX {
            let files: Vec<&str> = inherent.files.iter().map(String::as_str).collect();
            found.push(format!(
                "{path}: `impl {name}` in {} files, at most {FILES_MAX}: {}; what one file alone \
                 uses may be a function there",
                files.len(),
                files.join(", ")
            ));
        }
    }
    Ok(found)
}

fn too_many(path: &str, name: &str, count: usize, what: &str, max: usize) -> String {
    format!(
        "{path}: `{name}` has {count} {what}, at most {max}: take it apart, or say in the header \
         '{}' and why",
        excuse(name, what, max).trim_end()
    )
}

fn excuse(name: &str, what: &str, max: usize) -> String {
    format!("{name} has more than {max} {what}: ")
}

/// Whether the header of a file says why a type is as large as it is.
fn is_excused(file: &syn::File, name: &str, what: &str, max: usize) -> bool {
    let begin = excuse(name, what, max);
    let lines = file
        .attrs
        .iter()
        .filter_map(|attribute| match &attribute.meta {
            syn::Meta::NameValue(meta) if meta.path.is_ident("doc") => match &meta.value {
                syn::Expr::Lit(syn::ExprLit {
                    lit: syn::Lit::Str(line),
                    ..
                }) => Some(line.value()),
                _ => None,
            },
            _ => None,
        });
    lines.into_iter().any(|line| {
        let reason = line.trim_start().strip_prefix(&begin);
        reason.is_some_and(|reason| !reason.trim().is_empty())
    })
}

/// The items of a file, also those of modules within it, without tests.
fn items(all: &[syn::Item]) -> Vec<&syn::Item> {
    let own = all.iter().filter(|item| !is_test(attributes(item)));
    own.flat_map(|item| match item {
        syn::Item::Mod(syn::ItemMod {
            content: Some((_, inner)),
            ..
        }) => items(inner),
        item => vec![item],
    })
    .collect()
}

fn methods(one: &syn::ItemImpl) -> usize {
    let is_method =
        |item: &&syn::ImplItem| matches!(item, syn::ImplItem::Fn(of) if !is_test(&of.attrs));
    one.items.iter().filter(is_method).count()
}

fn fields(one: &syn::ItemStruct) -> usize {
    match &one.fields {
        syn::Fields::Named(fields) => fields
            .named
            .iter()
            .filter(|field| !is_test(&field.attrs))
            .count(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, String)]) -> Vec<String> {
        let sources: Vec<Source> = files
            .iter()
            .map(|(path, text)| Source {
                path: format!("c/src/{path}.rs"),
                text: text.clone(),
            })
            .collect();
        check_methods(&sources, "c/src/lib.rs").expect("it is Rust")
    }

    /// An `impl` of `of` with `count` methods.
    fn block(of: &str, count: usize) -> String {
        let methods: String = (0..count)
            .map(|number| format!("fn m{number}(&self) {{}} "))
            .collect();
        format!("impl {of} {{ {methods} const C: u8 = 0; }} ")
    }

    #[test]
    fn methods_in_all_files_count_together() {
        let files = |second: usize| {
            [
                ("lib", "mod a; mod b;".to_owned()),
                (
                    "a",
                    format!("pub struct A<T>(T); {}", block("<T> A<T>", 30)),
                ),
                ("b", format!("use crate::a::A; {}", block("A<u8>", second))),
            ]
        };
        assert_eq!(found(&files(10)), Vec::<String>::new());
        assert_eq!(
            found(&files(11)),
            [
                "c/src/a.rs: `A` has 41 methods, at most 40: take it apart, or say in the header \
                 'A has more than 40 methods:' and why"
            ]
        );
    }

    #[test]
    fn methods_of_a_type_that_a_macro_declares_count() {
        let files = [
            ("lib", "mod a; mod b; parts! { A }".to_owned()),
            ("a", format!("use crate::A; {}", block("A<'_>", 30))),
            ("b", format!("use crate::A; {}", block("A<'_>", 11))),
        ];
        assert_eq!(
            found(&files),
            [
                "c/src/a.rs: `A` has 41 methods, at most 40: take it apart, or say in the header \
                 'A has more than 40 methods:' and why"
            ]
        );
    }

    #[test]
    fn tests_traits_and_others_of_the_same_name_do_not_count() {
        let root = format!(
            "mod a; #[cfg(test)] mod b; struct A; {} {} #[cfg(test)] {} \
             #[cfg(test)] mod tests {{ use super::*; {} }}",
            block("A", 40),
            block("Clone for A", 9),
            block("A", 9),
            block("A", 9),
        );
        let other = format!("struct A; {}", block("A", 40));
        let test = format!("use crate::A; {}", block("A", 9));
        let files = [("lib", root), ("a", other), ("b", test)];
        assert_eq!(found(&files), Vec::<String>::new());
    }

    #[test]
    fn a_header_excuses_a_count_with_a_reason_and_nothing_else() {
        let with = |header: &str| {
            let text = format!("//! A type.\n//!\n{header}\nstruct A; {}", block("A", 41));
            found(&[("lib", text)]).len()
        };
        assert_eq!(
            with("//! A has more than 40 methods: they are one table."),
            0
        );
        for header in [
            "//! A has more than 40 methods: ",
            "//! B has more than 40 methods: they are one table.",
            "//! A has more than 20 fields: they are one table.",
            "// A has more than 40 methods: they are one table.",
        ] {
            assert_eq!(with(header), 1, "{header}");
        }
    }

    #[test]
    fn five_files_are_too_many_whatever_the_header_says() {
        let user = || format!("use crate::A; {}", block("A", 1));
        let root = "//! A has more than 40 methods: they are one table.\n\
                    mod a; mod b; mod c; mod d; mod e; struct A;";
        let mut files = vec![
            ("lib", root.to_owned()),
            ("a", user()),
            ("b", user()),
            ("c", user()),
            ("d", user()),
            ("e", String::new()),
        ];
        assert_eq!(found(&files), Vec::<String>::new());
        files[5].1 = user();
        assert_eq!(
            found(&files),
            [
                "c/src/lib.rs: `impl A` in 5 files, at most 4: c/src/a.rs, c/src/b.rs, c/src/c.rs, \
                 c/src/d.rs, c/src/e.rs; what one file alone uses may be a function there"
            ]
        );
    }

    #[test]
    fn a_struct_of_many_fields_has_a_reason() {
        let of = |header: &str, count: usize| {
            let fields: String = (0..count)
                .map(|number| format!("f{number}: u8, "))
                .collect();
            found(&[("lib", format!("{header}\nstruct A {{ {fields} }}"))])
        };
        assert_eq!(of("", 20), Vec::<String>::new());
        assert_eq!(
            of("", 21),
            [
                "c/src/lib.rs: `A` has 21 fields, at most 20: take it apart, or say in the header \
                 'A has more than 20 fields:' and why"
            ]
        );
        let reason = "//! A has more than 20 fields: it is one row.";
        assert_eq!(of(reason, 21), Vec::<String>::new());
    }
}
