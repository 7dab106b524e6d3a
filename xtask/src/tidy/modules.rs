//! Which files of a crate use which others.
//!
//! A file that only re-exports a name (`pub use`) does not use it: a file that imports the name
//! from there uses the file that defines it. Test modules are left out. Names that macros make are
//! unknown and count for the file in which they are looked up.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use proc_macro2::{TokenStream, TokenTree};
use syn::visit::Visit;
use syn::{Attribute, ImplItem, Item, UseTree, Visibility};

/// A module's place in its crate; the root is empty.
type Place = Vec<String>;

/// Which files use which, and one name that they use.
pub(super) type Edges = BTreeMap<(String, String), String>;

/// Who re-exports re-exports is followed so far.
const MAX_STEPS: usize = 16;

/// The edges among these files of one crate: its name below the sources, and its text.
pub(super) fn edges(sources: &[(&str, &str)]) -> Result<Edges> {
    let mut modules = BTreeMap::new();
    for (file, text) in sources {
        let tree = syn::parse_file(text).with_context(|| format!("parse {file}"))?;
        let mut module = Module { file: (*file).to_owned(), ..Module::default() };
        module.visit_file(&tree);
        modules.insert(place_of(file), module);
    }
    let tests: Vec<Place> = modules
        .iter()
        .flat_map(|(place, module)| module.tests.iter().map(|name| below(place, name)))
        .collect();
    modules.retain(|place, _| !tests.iter().any(|test| place.starts_with(test)));
    let known = Modules(modules);
    let mut edges = Edges::new();
    for (place, module) in &known.0 {
        // A trait may be used without its name; of a module something is named.
        let own = module.aliases.iter().filter(|alias| !alias.is_passed_on);
        let taken = own.filter_map(|alias| {
            let means = known.from(place, &alias.target, MAX_STEPS);
            means.filter(|it| !it.is_whole || alias.name == ALL).map(|it| (&alias.target, it))
        });
        let named = module
            .paths
            .iter()
            .filter_map(|path| known.from(place, path, MAX_STEPS).map(|means| (path, means)));
        for (path, means) in taken.chain(named) {
            if means.place == *place {
                continue;
            }
            let to = known.0[&means.place].file.clone();
            let name = path.last().cloned().unwrap_or_default();
            edges.entry((module.file.clone(), to)).or_insert(name);
        }
    }
    Ok(edges)
}

/// The groups of files that use one another, each sorted.
pub(super) fn circles(edges: &Edges) -> BTreeSet<Vec<String>> {
    let files: BTreeSet<&str> = edges.keys().map(|(one, _)| &**one).collect();
    let reach: BTreeMap<&str, BTreeSet<&str>> =
        files.into_iter().map(|file| (file, reached(edges, file))).collect();
    let in_circle = |file: &&&str| reach[**file].contains(**file);
    let circle = |file: &&str| {
        let back = |other: &&&str| reach.get(**other).is_some_and(|it| it.contains(*file));
        reach[*file].iter().filter(back).map(|it| (*it).to_owned()).collect()
    };
    reach.keys().filter(in_circle).map(circle).collect()
}

/// All files that one uses, itself or by way of others.
fn reached<'e>(edges: &'e Edges, from: &'e str) -> BTreeSet<&'e str> {
    let (mut seen, mut ahead) = (BTreeSet::new(), vec![from]);
    while let Some(file) = ahead.pop() {
        let next = edges.keys().filter(|(one, _)| one == file).map(|(_, other)| &**other);
        ahead.extend(next.filter(|other| seen.insert(*other)));
    }
    seen
}

/// `a/b.rs` and `a/b/mod.rs` are module `a::b`; `lib.rs` and `main.rs` are the root.
fn place_of(file: &str) -> Place {
    let mut parts: Place = file.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    let is_root = parts.len() == 1 && ["lib", "main"].contains(&&*parts[0]);
    if is_root || parts.last().is_some_and(|last| last == "mod") {
        parts.pop();
    }
    parts
}

fn below(place: &Place, name: &str) -> Place {
    place.iter().cloned().chain([name.to_owned()]).collect()
}

/// The definitions and uses of one file.
#[derive(Default)]
struct Module {
    file: String,
    /// Names that are defined here.
    items: BTreeSet<String>,
    aliases: Vec<Alias>,
    /// Paths in code, without what `use` says.
    paths: BTreeSet<Vec<String>>,
    /// Names of test modules in files of their own.
    tests: Vec<String>,
    /// Inline modules around what is visited.
    depth: usize,
}

/// What a `use` brings.
struct Alias {
    name: String,
    target: Vec<String>,
    is_passed_on: bool,
}

/// The name of what `use x::*` brings.
const ALL: &str = "*";

/// What a path means: something that a module defines, or the module as a whole.
struct Meaning {
    place: Place,
    is_whole: bool,
}

struct Modules(BTreeMap<Place, Module>);

impl Modules {
    /// What a path means at a place; nothing for another crate's.
    fn from(&self, place: &Place, path: &[String], steps: usize) -> Option<Meaning> {
        let first = path.first()?;
        match &**first {
            "crate" => self.at(&Place::new(), &path[1..], steps),
            "self" => self.at(place, &path[1..], steps),
            "super" => {
                let mut around = place.clone();
                let supers = path.iter().take_while(|part| *part == "super").count();
                around.truncate(place.len().saturating_sub(supers));
                self.at(&around, &path[supers..], steps)
            }
            _ if self.0.contains_key(&below(place, first)) => self.at(place, path, steps),
            _ => {
                let aliases = &self.0[place].aliases;
                let alias = aliases.iter().find(|alias| alias.name == *first)?;
                let target = [&alias.target[..], &path[1..]].concat();
                (target != path).then(|| self.from(place, &target, steps.checked_sub(1)?))?
            }
        }
    }

    /// The same for a path that begins in a module.
    fn at(&self, place: &Place, path: &[String], steps: usize) -> Option<Meaning> {
        let module = self.0.get(place)?;
        let here = |is_whole| Some(Meaning { place: place.clone(), is_whole });
        let Some(first) = path.first() else { return here(true) };
        let child = below(place, first);
        if self.0.contains_key(&child) {
            return self.at(&child, &path[1..], steps);
        }
        if module.items.contains(first) || steps == 0 {
            return here(false);
        }
        if let Some(alias) = module.aliases.iter().find(|alias| alias.name == *first) {
            let target = [&alias.target[..], &path[1..]].concat();
            return self.from(place, &target, steps - 1);
        }
        let globs = module.aliases.iter().filter(|alias| alias.name == ALL);
        let mut sources = globs.filter_map(|glob| self.from(place, &glob.target, steps - 1));
        let source = sources.find(|it| self.0[&it.place].items.contains(first));
        source.map_or_else(|| here(false), |it| Some(Meaning { is_whole: false, ..it }))
    }
}

impl Module {
    fn take(&mut self, tree: &UseTree, prefix: &mut Vec<String>, is_passed_on: bool) {
        let mut alias = |name: String, target: Vec<String>| {
            self.aliases.push(Alias { name, target, is_passed_on });
        };
        match tree {
            UseTree::Path(path) => {
                prefix.push(path.ident.to_string());
                self.take(&path.tree, prefix, is_passed_on);
                prefix.pop();
            }
            UseTree::Group(group) => {
                group.items.iter().for_each(|it| self.take(it, prefix, is_passed_on));
            }
            UseTree::Glob(_) => alias(ALL.into(), prefix.clone()),
            UseTree::Name(name) if name.ident == "self" => {
                alias(prefix.last().cloned().unwrap_or_default(), prefix.clone());
            }
            UseTree::Name(name) => {
                let name = name.ident.to_string();
                alias(name.clone(), [&prefix[..], &[name]].concat());
            }
            UseTree::Rename(renamed) => {
                let last = (renamed.ident != "self").then(|| renamed.ident.to_string());
                let target = prefix.iter().cloned().chain(last).collect();
                alias(renamed.rename.to_string(), target);
            }
        }
    }

    /// A path as the file sees it, not as its inline module does.
    fn path(&mut self, mut parts: Vec<String>) {
        let supers = parts.iter().take_while(|part| *part == "super").count();
        parts.drain(..supers.min(self.depth));
        if !parts.is_empty() {
            self.paths.insert(parts);
        }
    }

    /// The paths in what a macro is given.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut parts: Vec<String> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.path(std::mem::take(&mut parts));
                    }
                    parts.push(ident.to_string());
                    colons = 0;
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' => colons += 1,
                other => {
                    self.path(std::mem::take(&mut parts));
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.tokens(group.stream());
                    }
                }
            }
        }
        self.path(parts);
    }
}

impl<'ast> Visit<'ast> for Module {
    fn visit_item(&mut self, item: &'ast Item) {
        let (attributes, name) = described(item);
        if is_test(attributes) {
            if let Item::Mod(module) = item {
                self.tests.push(module.ident.to_string());
            }
            return;
        }
        if self.depth == 0 && !matches!(item, Item::Mod(module) if module.content.is_none()) {
            self.items.extend(name);
        }
        syn::visit::visit_item(self, item);
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        self.depth += 1;
        syn::visit::visit_item_mod(self, module);
        self.depth -= 1;
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        if !matches!(item, ImplItem::Fn(function) if is_test(&function.attrs)) {
            syn::visit::visit_impl_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let is_passed_on = !matches!(item.vis, Visibility::Inherited);
        self.take(&item.tree, &mut Vec::new(), is_passed_on);
    }

    /// `pub(in a::b)` uses nothing.
    fn visit_visibility(&mut self, _visibility: &'ast Visibility) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.path(path.segments.iter().map(|part| part.ident.to_string()).collect());
        syn::visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, invoked: &'ast syn::Macro) {
        self.tokens(invoked.tokens.clone());
        syn::visit::visit_macro(self, invoked);
    }
}

/// The attributes of an item and, where it has one, its name.
fn described(item: &Item) -> (&[Attribute], Option<String>) {
    macro_rules! named {
        ($item:expr) => {
            (&$item.attrs, Some($item.ident.to_string()))
        };
    }
    match item {
        Item::Const(item) => named!(item),
        Item::Enum(item) => named!(item),
        Item::Mod(item) => named!(item),
        Item::Static(item) => named!(item),
        Item::Struct(item) => named!(item),
        Item::Trait(item) => named!(item),
        Item::TraitAlias(item) => named!(item),
        Item::Type(item) => named!(item),
        Item::Union(item) => named!(item),
        Item::Fn(item) => (&item.attrs, Some(item.sig.ident.to_string())),
        Item::Macro(item) => (&item.attrs, item.ident.as_ref().map(ToString::to_string)),
        Item::Impl(item) => (&item.attrs, None),
        Item::Use(item) => (&item.attrs, None),
        _ => (&[], None),
    }
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Ident>().is_ok_and(|word| word == "test")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(sources: &[(&str, &str)], expected: &[&[&str]]) {
        let edges = edges(sources).expect("sources that can be read");
        let found: Vec<Vec<String>> = circles(&edges).into_iter().collect();
        assert_eq!(found, expected, "{edges:?}");
    }

    #[test]
    fn two_files_that_use_each_other_are_a_circle() {
        check(
            &[
                ("lib.rs", "mod a; mod b; mod c;"),
                ("a.rs", "use crate::b::B; pub struct A(B);"),
                ("b.rs", "pub struct B; fn f() { crate::a::g() }"),
                ("c.rs", "use crate::a::A; struct C(A);"),
            ],
            &[&["a.rs", "b.rs"]],
        );
    }

    #[test]
    fn a_longer_way_back_is_a_circle_too() {
        check(
            &[
                ("main.rs", "mod a; mod b; mod c; fn main() { a::run() }"),
                ("a.rs", "use crate::b; pub fn run() { b::run() }"),
                ("b.rs", "pub fn run() { println!(\"{}\", crate::c::C) }"),
                ("c.rs", "pub use super::a::run as again; pub const C: u8 = 1; fn f() { again() }"),
            ],
            &[&["a.rs", "b.rs", "c.rs"]],
        );
    }

    #[test]
    fn passing_a_name_on_is_no_use_of_it() {
        check(
            &[
                ("lib.rs", "mod a;"),
                ("a/mod.rs", "mod b; pub use b::B; pub struct A;"),
                ("a/b.rs", "use super::A; pub struct B(A);"),
            ],
            &[],
        );
        check(
            &[
                ("lib.rs", "mod a;"),
                ("a.rs", "mod b; pub use b::B; pub struct A; fn f() -> B { B::new() }"),
                ("a/b.rs", "use super::A; pub struct B(A);"),
            ],
            &[&["a.rs", "a/b.rs"]],
        );
    }

    #[test]
    fn who_takes_a_name_where_it_is_passed_on_uses_who_defines_it() {
        check(
            &[
                ("lib.rs", "mod a; mod c; pub use a::*;"),
                ("a.rs", "mod b; pub use b::B;"),
                ("a/b.rs", "use crate::c::C; pub struct B(C);"),
                ("c.rs", "pub struct C; fn f(b: crate::a::B) {}"),
            ],
            &[&["a/b.rs", "c.rs"]],
        );
    }

    #[test]
    fn tests_may_look_at_everything() {
        check(
            &[
                ("lib.rs", "mod a; #[cfg(test)] mod tests;"),
                ("a.rs", "pub fn f() {} #[cfg(test)] mod tests { use crate::tests::g; }"),
                ("tests.rs", "use crate::a::f; pub fn g() { f() }"),
            ],
            &[],
        );
    }
}
