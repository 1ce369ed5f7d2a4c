//! Parameters with names (STYLE, "Parameters"): no tuple as a parameter, no closure parameter `it`.

use syn::visit::{self, Visit};
use syn::{Attribute, ExprClosure, FnArg, ItemMod, Pat, Signature, Type};

/// Faults of this kind in one file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Functions with a parameter whose type or pattern is a tuple.
    pub(crate) tuple_parameters: usize,
    /// Closures with a parameter named `it`.
    pub(crate) closures_it: usize,
}

/// Counts in the source `text`, tests not included.
///
/// # Errors
/// The text is not Rust.
pub(crate) fn count(text: &str) -> syn::Result<Counts> {
    let mut counts = Counts::default();
    counts.visit_file(&syn::parse_file(text)?);
    Ok(counts)
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let test = |path: &syn::Path| path.is_ident("test");
        test(attribute.path())
            || attribute.path().is_ident("cfg")
                && attribute.parse_args::<syn::Path>().is_ok_and(|path| test(&path))
    })
}

fn is_tuple(argument: &FnArg) -> bool {
    let FnArg::Typed(argument) = argument else { return false };
    let is_type = matches!(&*argument.ty, Type::Tuple(tuple) if !tuple.elems.is_empty());
    is_type || matches!(&*argument.pat, Pat::Tuple(_))
}

impl<'ast> Visit<'ast> for Counts {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if !is_test(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        if !is_test(&function.attrs) {
            visit::visit_item_fn(self, function);
        }
    }

    fn visit_item_impl(&mut self, block: &'ast syn::ItemImpl) {
        if !is_test(&block.attrs) {
            visit::visit_item_impl(self, block);
        }
    }

    fn visit_signature(&mut self, signature: &'ast Signature) {
        self.tuple_parameters += usize::from(signature.inputs.iter().any(is_tuple));
        visit::visit_signature(self, signature);
    }

    fn visit_expr_closure(&mut self, closure: &'ast ExprClosure) {
        let is_it = |pattern: &Pat| match pattern {
            Pat::Ident(name) => name.ident == "it",
            Pat::Type(typed) => matches!(&*typed.pat, Pat::Ident(name) if name.ident == "it"),
            _ => false,
        };
        self.closures_it += usize::from(closure.inputs.iter().any(is_it));
        visit::visit_expr_closure(self, closure);
    }
}

#[cfg(test)]
mod tests {
    use super::{Counts, count};

    #[test]
    fn tuples_and_it_are_counted_outside_of_tests() {
        let text = "
            fn one((a, b): (u8, u8)) {}
            fn two(a: (u8, u8), (b, c): (u8, u8)) {}
            fn fine(a: u8, nothing: (), f: impl Fn((u8, u8))) { let _ = f; }
            impl X { fn three(&self, a: (u8, u8)) { a.map(|it| it); b.map(|it: u8| it); c.map(|(x, y)| x) } }
            #[cfg(test)]
            mod tests { fn four(a: (u8, u8)) { a.map(|it| it) } }
            #[test]
            fn five() { a.map(|it| it) }
        ";
        assert_eq!(count(text).unwrap(), Counts { tuple_parameters: 3, closures_it: 2 });
        assert!(count("fn (").is_err());
    }
}
