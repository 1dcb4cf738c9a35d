//! Which file of a crate uses which: the graph of imports.
//!
//! There is an edge from one file to another where a `use` or a path of the first names an item
//! that the second defines. What re-exports an item hands it on and is no user of it; a function of
//! a type (`Type::open`) counts as the file that holds its `impl`. Calls of methods name no path,
//! and so make no edge. Tests make none either.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};

use xtask::workspace::Source;

/// For each file what it uses: the other file, and by which names.
pub type Graph = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// No path here is longer.
const SEGMENTS_MAX: usize = 16;

/// What paths name, seen from modules, as far as one question has asked.
type Known = HashMap<(usize, Vec<String>), Option<Target>>;

/// The graph of the crate whose root is the file `root`.
pub fn graph(sources: &[Source], root: &str) -> Result<Graph, String> {
    let krate = Crate::load(sources, root)?;
    let mut graph: Graph = krate
        .files
        .iter()
        .map(|file| (file.path.clone(), BTreeMap::new()))
        .collect();
    for file in &krate.files {
        let mut users = Users {
            krate: &krate,
            module: file.module,
            file: &file.path,
            of: None,
            uses: BTreeMap::new(),
        };
        users.visit_file(&file.code);
        graph.insert(file.path.clone(), users.uses);
    }
    Ok(graph)
}

/// The modules of a crate and what they name.
#[derive(Default)]
pub(super) struct Crate {
    modules: Vec<Module>,
    pub(super) files: Vec<File>,
    /// The file of each function and constant of a type, where that is not the type's own.
    functions: HashMap<(Item, String), String>,
}

/// A file that is no test's.
pub(super) struct File {
    pub(super) path: String,
    module: usize,
    pub(super) code: syn::File,
}

struct Module {
    file: String,
    parent: Option<usize>,
    names: HashMap<String, Vec<Name>>,
    globs: Vec<Vec<String>>,
}

enum Name {
    Item,
    Module(usize),
    Use { path: Vec<String>, is_export: bool },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Item {
    module: usize,
    name: String,
}

#[derive(Clone)]
enum Target {
    Item(Item),
    /// A function or constant of a type.
    Function(Item, String),
    Module(usize),
}

impl Crate {
    /// The crate whose root is the file `root`.
    pub(super) fn load(sources: &[Source], root: &str) -> Result<Crate, String> {
        let texts: HashMap<&str, &str> = sources
            .iter()
            .map(|source| (source.path.as_str(), source.text.as_str()))
            .collect();
        let mut krate = Crate::default();
        let directory = root.rsplit_once('/').map_or("", |(directory, _)| directory);
        krate.read(&texts, root, directory, None)?;
        krate.note_functions();
        Ok(krate)
    }

    /// Reads a file and those of the modules that it declares, which lie in `directory`.
    fn read(
        &mut self,
        texts: &HashMap<&str, &str>,
        path: &str,
        directory: &str,
        parent: Option<usize>,
    ) -> Result<usize, String> {
        let text = texts
            .get(path)
            .ok_or_else(|| format!("{path}: declared and not there"))?;
        let code = syn::parse_file(text).map_err(|error| format!("{path}: {error}"))?;
        let module = self.add(path, parent);
        self.read_items(texts, &code.items, directory, module)?;
        self.files.push(File {
            path: path.to_owned(),
            module,
            code,
        });
        Ok(module)
    }

    fn add(&mut self, file: &str, parent: Option<usize>) -> usize {
        self.modules.push(Module {
            file: file.to_owned(),
            parent,
            names: HashMap::new(),
            globs: Vec::new(),
        });
        self.modules.len() - 1
    }

    fn read_items(
        &mut self,
        texts: &HashMap<&str, &str>,
        items: &[syn::Item],
        directory: &str,
        module: usize,
    ) -> Result<(), String> {
        for item in items.iter().filter(|item| !is_test(attributes(item))) {
            match item {
                syn::Item::Mod(inner) => {
                    let name = plain(&inner.ident);
                    let inside = format!("{directory}/{name}");
                    let child = match &inner.content {
                        Some((_, items)) => {
                            let file = self.modules[module].file.clone();
                            let child = self.add(&file, Some(module));
                            self.read_items(texts, items, &inside, child)?;
                            child
                        }
                        None => {
                            let beside = format!("{directory}/{name}.rs");
                            let path = match texts.contains_key(beside.as_str()) {
                                true => beside,
                                false => format!("{inside}/mod.rs"),
                            };
                            self.read(texts, &path, &inside, Some(module))?
                        }
                    };
                    self.modules[module].name(name, Name::Module(child));
                }
                syn::Item::Use(used) => {
                    let is_export = !matches!(used.vis, syn::Visibility::Inherited);
                    for (path, name) in leaves(&used.tree) {
                        match name {
                            Some(name) => {
                                let name_of = Name::Use { path, is_export };
                                self.modules[module].name(name, name_of);
                            }
                            None => self.modules[module].globs.push(path),
                        }
                    }
                }
                item => {
                    if let Some(name) = item_name(item) {
                        self.modules[module].name(name, Name::Item);
                    }
                }
            }
        }
        Ok(())
    }

    /// Notes where the functions of types are.
    fn note_functions(&mut self) {
        let mut found = HashMap::new();
        for file in &self.files {
            let impls = file.code.items.iter().filter_map(|item| match item {
                syn::Item::Impl(one) if one.trait_.is_none() && !is_test(&one.attrs) => Some(one),
                _ => None,
            });
            for one in impls {
                let Some(owner) = self.self_type(file.module, &one.self_ty) else {
                    continue;
                };
                for inner in &one.items {
                    let name = match inner {
                        syn::ImplItem::Fn(function) => plain(&function.sig.ident),
                        syn::ImplItem::Const(constant) => plain(&constant.ident),
                        _ => continue,
                    };
                    found.insert((owner.clone(), name), file.path.clone());
                }
            }
        }
        self.functions = found;
    }

    /// The file that declares the type that an `impl` in `file` is of, and its name; no file where
    /// a macro declares it.
    pub(super) fn declared(&self, file: &File, of: &syn::Type) -> (Option<String>, String) {
        match (self.self_type(file.module, of), of) {
            (Some(item), _) => (Some(self.modules[item.module].file.clone()), item.name),
            (None, syn::Type::Path(of)) => (None, segments(&of.path).pop().unwrap_or_default()),
            (None, _) => (None, String::new()),
        }
    }

    /// The type of this crate that an `impl` in `module` is of.
    fn self_type(&self, module: usize, of: &syn::Type) -> Option<Item> {
        let syn::Type::Path(of) = of else { return None };
        match self.resolve(module, &segments(&of.path), &mut Known::new())? {
            Target::Item(item) => Some(item),
            _ => None,
        }
    }

    /// The file of what a path names, seen from `module`, unless it is another crate's or a
    /// module.
    fn file_of(&self, module: usize, path: &[String]) -> Option<&str> {
        match self.resolve(module, path, &mut Known::new())? {
            Target::Item(item) => Some(&self.modules[item.module].file),
            Target::Function(owner, name) => Some(self.function_file(&owner, &name)),
            Target::Module(_) => None,
        }
    }

    fn function_file(&self, owner: &Item, name: &str) -> &str {
        let key = (owner.clone(), name.to_owned());
        let own = &self.modules[owner.module].file;
        self.functions.get(&key).unwrap_or(own)
    }

    fn resolve(&self, module: usize, path: &[String], known: &mut Known) -> Option<Target> {
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => self.within(0, rest, known),
            "self" => self.within(module, rest, known),
            "super" => self.within(self.modules[module].parent?, rest, known),
            _ => self.lookup(module, path, known),
        }
    }

    /// What `path` names that begins in `module` itself, which `super` may leave.
    fn within(&self, module: usize, path: &[String], known: &mut Known) -> Option<Target> {
        match path.first().map(String::as_str) {
            None => Some(Target::Module(module)),
            Some("super") => self.within(self.modules[module].parent?, &path[1..], known),
            Some(_) => self.lookup(module, path, known),
        }
    }

    fn lookup(&self, module: usize, path: &[String], known: &mut Known) -> Option<Target> {
        // `use a::a` of another crate, asked for `a`, would be asked for `a::a` and so on.
        if path.len() > SEGMENTS_MAX {
            return None;
        }
        let question = (module, path.to_vec());
        if let Some(answer) = known.get(&question) {
            return answer.clone();
        }
        // What comes back to itself names nothing.
        known.insert(question.clone(), None);
        let answer = self.look(module, path, known);
        known.insert(question, answer.clone());
        answer
    }

    fn look(&self, module: usize, path: &[String], known: &mut Known) -> Option<Target> {
        let (first, rest) = path.split_first()?;
        let names = self.modules[module].names.get(first);
        let named = names.into_iter().flatten().find_map(|name| match name {
            Name::Item => {
                let item = Item {
                    module,
                    name: first.clone(),
                };
                Some(match rest.first() {
                    None => Target::Item(item),
                    Some(function) => Target::Function(item, function.clone()),
                })
            }
            Name::Module(inner) => self.within(*inner, rest, known),
            Name::Use { path, .. } => {
                self.resolve(module, &[path.as_slice(), rest].concat(), known)
            }
        });
        let mut globs = self.modules[module].globs.iter();
        named.or_else(|| {
            globs.find_map(|glob| match self.resolve(module, glob, known)? {
                Target::Module(inner) if inner != module => self.lookup(inner, path, known),
                _ => None,
            })
        })
    }

    /// Whether a name in `module` has no `use` of its own that makes the edge.
    fn is_handed_on(&self, module: usize, name: &str) -> bool {
        let names = self.modules[module].names.get(name);
        names.into_iter().flatten().all(|name| {
            matches!(
                name,
                Name::Use {
                    is_export: true,
                    ..
                }
            )
        })
    }
}

impl Module {
    /// Items go before modules of the same name, which only longer paths name.
    fn name(&mut self, name: String, of: Name) {
        let names = self.names.entry(name).or_default();
        match of {
            Name::Module(_) => names.push(of),
            _ => names.insert(0, of),
        }
    }
}

/// Finds what one file uses.
struct Users<'a> {
    krate: &'a Crate,
    module: usize,
    file: &'a str,
    /// What `Self` is.
    of: Option<Item>,
    uses: BTreeMap<String, BTreeSet<String>>,
}

impl Users<'_> {
    fn note(&mut self, path: &[String]) {
        let file = match (path, &self.of) {
            ([first, name, ..], Some(of)) if first == "Self" => {
                Some(self.krate.function_file(of, name))
            }
            _ => self.krate.file_of(self.module, path),
        };
        if let Some(file) = file.filter(|file| *file != self.file) {
            let names = self.uses.entry(file.to_owned()).or_default();
            names.insert(path.join("::"));
        }
    }

    /// Notes the paths in what a macro is called with.
    fn note_tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Punct(mark) if mark.as_char() == ':' => colons += 1,
                TokenTree::Ident(ident) if colons == 2 && !path.is_empty() => {
                    path.push(plain(&ident));
                    colons = 0;
                }
                other => {
                    self.note_long(&path);
                    (path, colons) = (Vec::new(), 0);
                    match other {
                        TokenTree::Ident(ident) => path = vec![plain(&ident)],
                        TokenTree::Group(group) => self.note_tokens(group.stream()),
                        _ => {}
                    }
                }
            }
        }
        self.note_long(&path);
    }

    fn note_long(&mut self, path: &[String]) {
        if path.len() > 1 {
            self.note(path);
        }
    }

    fn note_short(&mut self, path: &syn::Path) {
        if let [name] = segments(path).as_slice()
            && self.krate.is_handed_on(self.module, name)
        {
            self.note(std::slice::from_ref(name));
        }
    }
}

impl<'ast> Visit<'ast> for Users<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if !is_test(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, inner: &'ast syn::ItemMod) {
        let names = self.krate.modules[self.module]
            .names
            .get(&plain(&inner.ident));
        let child = names.into_iter().flatten().find_map(|name| match name {
            Name::Module(child) => Some(*child),
            _ => None,
        });
        if let (Some(child), Some(_)) = (child, &inner.content) {
            let outer = std::mem::replace(&mut self.module, child);
            visit::visit_item_mod(self, inner);
            self.module = outer;
        }
    }

    fn visit_item_use(&mut self, used: &'ast syn::ItemUse) {
        if matches!(used.vis, syn::Visibility::Inherited) {
            let named = leaves(&used.tree).into_iter();
            for (path, _) in named.filter(|(_, name)| name.is_some()) {
                self.note(&path);
            }
        }
    }

    fn visit_item_impl(&mut self, one: &'ast syn::ItemImpl) {
        let outer = self.of.take();
        self.of = self.krate.self_type(self.module, &one.self_ty);
        visit::visit_item_impl(self, one);
        self.of = outer;
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !is_test(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.note_long(&segments(path));
        visit::visit_path(self, path);
    }

    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}

    fn visit_type_path(&mut self, of: &'ast syn::TypePath) {
        self.note_short(&of.path);
        visit::visit_type_path(self, of);
    }

    fn visit_trait_bound(&mut self, bound: &'ast syn::TraitBound) {
        self.note_short(&bound.path);
        visit::visit_trait_bound(self, bound);
    }

    fn visit_expr_struct(&mut self, made: &'ast syn::ExprStruct) {
        self.note_short(&made.path);
        visit::visit_expr_struct(self, made);
    }

    fn visit_expr_call(&mut self, call: &'ast syn::ExprCall) {
        if let syn::Expr::Path(function) = call.func.as_ref() {
            self.note_short(&function.path);
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        self.note_short(&called.path);
        self.note_tokens(called.tokens.clone());
        visit::visit_macro(self, called);
    }
}

/// The paths of a `use`, each with the name that it gives, or none for `*`.
fn leaves(tree: &syn::UseTree) -> Vec<(Vec<String>, Option<String>)> {
    let mut found = Vec::new();
    collect_leaves(tree, &[], &mut found);
    found
}

fn collect_leaves(
    tree: &syn::UseTree,
    above: &[String],
    found: &mut Vec<(Vec<String>, Option<String>)>,
) {
    let with = |ident: &syn::Ident| [above, &[plain(ident)]].concat();
    match tree {
        syn::UseTree::Path(path) => collect_leaves(&path.tree, &with(&path.ident), found),
        syn::UseTree::Group(group) => {
            for tree in &group.items {
                collect_leaves(tree, above, found);
            }
        }
        syn::UseTree::Glob(_) => found.push((above.to_vec(), None)),
        // `use a::{self}` names `a`.
        syn::UseTree::Name(name) if name.ident == "self" => {
            found.push((above.to_vec(), above.last().cloned()));
        }
        syn::UseTree::Name(name) => found.push((with(&name.ident), Some(plain(&name.ident)))),
        syn::UseTree::Rename(name) if name.ident == "self" => {
            found.push((above.to_vec(), Some(plain(&name.rename))));
        }
        syn::UseTree::Rename(name) => found.push((with(&name.ident), Some(plain(&name.rename)))),
    }
}

fn segments(path: &syn::Path) -> Vec<String> {
    match path.leading_colon {
        Some(_) => Vec::new(),
        None => path
            .segments
            .iter()
            .map(|part| plain(&part.ident))
            .collect(),
    }
}

/// Without `r#`.
fn plain(ident: &syn::Ident) -> String {
    let text = ident.to_string();
    text.strip_prefix("r#").unwrap_or(&text).to_owned()
}

fn item_name(item: &syn::Item) -> Option<String> {
    let ident = match item {
        syn::Item::Const(item) => &item.ident,
        syn::Item::Enum(item) => &item.ident,
        syn::Item::Fn(item) => &item.sig.ident,
        syn::Item::Macro(item) => item.ident.as_ref()?,
        syn::Item::Static(item) => &item.ident,
        syn::Item::Struct(item) => &item.ident,
        syn::Item::Trait(item) => &item.ident,
        syn::Item::Type(item) => &item.ident,
        syn::Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(plain(ident))
}

pub(super) fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Enum(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Static(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Trait(item) => &item.attrs,
        syn::Item::Type(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

pub(super) fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::List(list) => list.path.is_ident("cfg") && list.tokens.to_string() == "test",
        _ => false,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn graph_of(files: &[(&str, &str)]) -> Graph {
        let sources: Vec<Source> = files
            .iter()
            .map(|(path, text)| Source {
                path: format!("c/src/{path}.rs"),
                text: text.to_string(),
            })
            .collect();
        graph(&sources, "c/src/lib.rs").expect("it is Rust")
    }

    /// `user → used` of every edge.
    fn edges(files: &[(&str, &str)]) -> Vec<String> {
        let graph = graph_of(files);
        let pairs = graph
            .iter()
            .flat_map(|(user, uses)| uses.keys().map(move |used| (user, used)));
        let short = |path: &String| path["c/src/".len()..path.len() - ".rs".len()].to_owned();
        pairs
            .map(|(user, used)| format!("{} → {}", short(user), short(used)))
            .collect()
    }

    #[test]
    fn a_use_a_path_and_a_path_in_a_macro_make_edges() {
        for user in [
            "use crate::b::{deep::X, other};",
            "use super::b::deep::{self, X as Y}; fn f(_: Y) {}",
            "fn f() -> crate::b::deep::X { self::inner::g() } mod inner { pub fn g() {} }",
            "fn f() { println!(\"{}\", crate::b::deep::made()) }",
            "use crate::b; fn f() { b::deep::made() }",
            "mod inner { fn f(_: super::super::b::deep::X) {} }",
        ] {
            let files = [
                ("lib", "mod a; mod b;"),
                ("a", user),
                ("b", "pub mod deep; pub mod other { }"),
                ("b/deep", "pub struct X; pub fn made() -> u8 { 0 }"),
            ];
            assert_eq!(edges(&files), ["a → b/deep"], "{user}");
        }
    }

    #[test]
    fn a_re_export_counts_as_where_the_item_is_defined() {
        let root = "mod a; mod b; pub use b::*; pub use b::deep::X as Renamed;";
        let room = "mod deep; pub(crate) use deep::{X, made};";
        let deep = "pub struct X; pub fn made() {}";
        for user in [
            "use crate::Renamed;",
            "use crate::X;",
            "use crate::b::made;",
            "use super::*; fn f(_: X) {}",
        ] {
            let files = [("lib", root), ("a", user), ("b", room), ("b/deep", deep)];
            assert_eq!(edges(&files), ["a → b/deep"], "{user}");
        }
        let using = format!("{room} fn f() {{ made() }}");
        let files = [("lib", root), ("a", ""), ("b", &using), ("b/deep", deep)];
        assert_eq!(edges(&files), ["b → b/deep"], "what exports may use it too");
    }

    #[test]
    fn functions_of_a_type_count_as_the_file_of_their_impl() {
        let files = [
            ("lib", "mod a; mod b; mod c;"),
            ("a", "pub struct A; impl A { pub fn new() {} }"),
            (
                "b",
                "use crate::a::A; impl A { pub fn open() {} const MAX: u8 = 1; }",
            ),
            ("c", "use crate::a::A; fn f() { A::open() }"),
        ];
        assert_eq!(edges(&files), ["b → a", "c → a", "c → b"]);
        let own = "use crate::b::B; impl B { fn f() { Self::other(); Self::near() } fn near() {} }";
        let files = [
            ("lib", "mod a; mod b; mod c;"),
            ("a", own),
            ("b", "pub struct B;"),
            ("c", "use crate::b::B; impl B { pub fn other() {} }"),
        ];
        assert_eq!(edges(&files), ["a → b", "a → c", "c → b"]);
    }

    #[test]
    fn a_function_and_a_module_of_one_name_are_told_apart() {
        let files = [
            ("lib", "mod a; mod b;"),
            ("a", "use crate::b::deep; fn f() { deep() }"),
            ("b", "mod deep; pub use deep::deep;"),
            ("b/deep", "pub fn deep() {}"),
        ];
        assert_eq!(edges(&files), ["a → b/deep"]);
    }

    #[test]
    fn many_globs_are_followed_once_each() {
        let all =
            "use crate::a::*; use crate::b::*; use other::*; use more::*; fn f(_: Unknown) {}";
        let found = edges(&[
            ("lib", "mod a; mod b; mod c; use other::*; use more::*;"),
            ("a", all),
            ("b", &format!("{all} pub use crate::c::X;")),
            (
                "c",
                "use other::other; pub struct X; fn f(_: crate::a::X) { other() }",
            ),
        ]);
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn tests_other_crates_and_words_make_no_edge() {
        let files = [
            ("lib", "mod a; mod b;"),
            (
                "a",
                "//! crate::b::B\n// use crate::b::B;\nuse std::fmt; use other::b::B;\n\
                 const TEXT: &str = \"crate::b::B\"; fn f(b: u8) -> u8 { b }\n\
                 #[cfg(test)] mod tests { use crate::b::B; }\n\
                 #[cfg(test)] use crate::b::B as Tested;\n",
            ),
            ("b", "pub struct B;"),
        ];
        assert_eq!(edges(&files), Vec::<String>::new());
    }
}
