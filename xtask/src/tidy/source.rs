//! Reads the project's Rust files and counts what the scoreboard needs.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use syn::spanned::Spanned;
use syn::visit::Visit;

/// One Rust file with its counts.
pub(super) struct SourceFile {
    pub(super) path: String,
    pub(super) text: String,
    pub(super) functions: Vec<Function>,
    pub(super) pub_items: usize,
    pub(super) narrow_items: usize,
    pub(super) doc_lines: usize,
    pub(super) code_lines: usize,
    pub(super) uses_unsafe: bool,
    /// Those outside of tests whose value is written out.
    pub(super) constants: Vec<Constant>,
    tests_from: Option<usize>,
}

/// A constant with its value.
pub(super) struct Constant {
    pub(super) name: String,
    /// Its type, if that is one word.
    pub(super) type_name: String,
    pub(super) value: syn::Lit,
}

/// A function and the lines of its body and signature.
pub(super) struct Function {
    pub(super) name: String,
    pub(super) lines: usize,
    /// The trait that it implements gives the name; our own traits are looked at themselves.
    pub(super) implements: bool,
}

impl SourceFile {
    /// The crate the file belongs to, by its directory's name.
    pub(super) fn krate(&self) -> &str {
        let mut parts = self.path.split('/');
        match parts.next() {
            Some("crates") => parts.next().unwrap_or_default(),
            other => other.unwrap_or_default(),
        }
    }

    /// Whether the file is part of what ships, not a test.
    pub(super) fn is_library(&self) -> bool {
        self.path.starts_with("crates/") && self.path.contains("/src/")
    }

    /// How many lines precede the `#[cfg(test)]` module.
    pub(super) fn lines_before_tests(&self) -> usize {
        self.tests_from.unwrap_or_else(|| self.text.lines().count())
    }
}

/// All Rust files that git knows or would take up.
pub(super) fn all() -> Result<Vec<SourceFile>> {
    let listing = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "*.rs"])
        .output()
        .context("list the project's files with git")?;
    let listing = String::from_utf8(listing.stdout).context("file names are UTF-8")?;
    listing.lines().filter(|path| Path::new(path).exists()).map(read).collect()
}

fn read(path: &str) -> Result<SourceFile> {
    parsed(path, std::fs::read_to_string(path).with_context(|| format!("read {path}"))?)
}

/// The file at `path`, whose text is known.
pub(super) fn parsed(path: &str, text: String) -> Result<SourceFile> {
    let tree = syn::parse_file(&text).with_context(|| format!("parse {path}"))?;
    let mut counts = Counts::default();
    counts.visit_file(&tree);
    let tests_from = text.lines().position(|line| line.trim() == "#[cfg(test)]");
    let library = text.lines().take(tests_from.unwrap_or(usize::MAX));
    let (mut doc_lines, mut code_lines) = (0, 0);
    for line in library.map(str::trim) {
        match line {
            "" => {}
            _ if line.starts_with("///") || line.starts_with("//!") => doc_lines += 1,
            _ if line.starts_with("//") => {}
            _ => code_lines += 1,
        }
    }
    Ok(SourceFile {
        path: path.into(),
        functions: counts.functions,
        pub_items: counts.pub_items,
        narrow_items: counts.narrow_items,
        uses_unsafe: counts.uses_unsafe,
        constants: counts.constants,
        doc_lines,
        code_lines,
        tests_from,
        text,
    })
}

#[derive(Default)]
struct Counts {
    functions: Vec<Function>,
    pub_items: usize,
    narrow_items: usize,
    uses_unsafe: bool,
    constants: Vec<Constant>,
    in_implementation: bool,
}

impl Counts {
    fn function(&mut self, name: &syn::Ident, whole: proc_macro2::Span) {
        let lines = whole.end().line - whole.start().line + 1;
        let implements = self.in_implementation;
        self.functions.push(Function { name: name.to_string(), lines, implements });
    }

    fn constant(&mut self, name: &syn::Ident, of: &syn::Type, value: &syn::Expr) {
        let type_name = match of {
            syn::Type::Path(path) => path.path.get_ident().map(ToString::to_string),
            _ => None,
        };
        if let syn::Expr::Lit(value) = value {
            let (name, value) = (name.to_string(), value.lit.clone());
            self.constants.push(Constant { name, type_name: type_name.unwrap_or_default(), value });
        }
    }
}

impl<'ast> Visit<'ast> for Counts {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        let is_test = item.attrs.iter().any(|attribute| {
            attribute.path().is_ident("cfg")
                && attribute.parse_args::<syn::Ident>().is_ok_and(|word| word == "test")
        });
        if !is_test {
            syn::visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        let span = item.sig.span().join(item.block.span());
        self.function(&item.sig.ident, span.unwrap_or_else(|| item.block.span()));
        self.uses_unsafe |= item.sig.unsafety.is_some();
        syn::visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        let span = item.sig.span().join(item.block.span());
        self.function(&item.sig.ident, span.unwrap_or_else(|| item.block.span()));
        self.uses_unsafe |= item.sig.unsafety.is_some();
        syn::visit::visit_impl_item_fn(self, item);
    }

    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        self.constant(&item.ident, &item.ty, &item.expr);
        syn::visit::visit_item_const(self, item);
    }

    fn visit_impl_item_const(&mut self, item: &'ast syn::ImplItemConst) {
        self.constant(&item.ident, &item.ty, &item.expr);
        syn::visit::visit_impl_item_const(self, item);
    }

    fn visit_expr_unsafe(&mut self, block: &'ast syn::ExprUnsafe) {
        self.uses_unsafe = true;
        syn::visit::visit_expr_unsafe(self, block);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        self.uses_unsafe |= item.unsafety.is_some();
        let around = std::mem::replace(&mut self.in_implementation, item.trait_.is_some());
        syn::visit::visit_item_impl(self, item);
        self.in_implementation = around;
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.function(&item.sig.ident, item.span());
        syn::visit::visit_trait_item_fn(self, item);
    }

    fn visit_visibility(&mut self, visibility: &'ast syn::Visibility) {
        match visibility {
            syn::Visibility::Public(_) => self.pub_items += 1,
            syn::Visibility::Restricted(_) => self.narrow_items += 1,
            syn::Visibility::Inherited => {}
        }
    }
}
