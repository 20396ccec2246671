//! Which policy each function of the pool uses.

use serde::{Deserialize, Serialize};

use crate::policy::Policy;
use crate::readdir::ReaddirRule;

/// A group of functions that share a default policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Category {
    /// Changes to something that exists.
    Action,
    /// Making something new.
    Create,
    /// Looking at something that exists.
    Search,
}

impl Category {
    /// The policy every function of the category has unless told otherwise.
    pub const fn default_policy(self) -> Policy {
        match self {
            Self::Action => Policy::EpAll,
            Self::Create => Policy::Pfrd,
            Self::Search => Policy::Ff,
        }
    }

    /// The functions of this category.
    pub fn functions(self) -> impl Iterator<Item = Function> {
        Function::ALL
            .into_iter()
            .filter(move |function| function.category() == self)
    }
}

macro_rules! functions {
    ($count:literal: $( $field:ident $variant:ident $category:ident $doc:literal, )*) => {
        /// A function of the pool that asks a policy for branches.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Function {
            $( #[doc = $doc] $variant, )*
        }

        impl Function {
            /// Every function, in alphabetical order.
            pub const ALL: [Function; $count] = [ $( Self::$variant, )* ];

            /// The name in `func.NAME`.
            pub const fn name(self) -> &'static str {
                match self { $( Self::$variant => stringify!($field), )* }
            }

            /// The category whose option also sets this function.
            pub const fn category(self) -> Category {
                match self { $( Self::$variant => Category::$category, )* }
            }
        }
    };
}

functions! { 20:
    access Access Search "Permission checks.",
    chmod Chmod Action "Changing modes.",
    chown Chown Action "Changing owners.",
    create Create Create "Creating files; also decides whether rename and link preserve paths.",
    getattr Getattr Search "Reading attributes.",
    getxattr Getxattr Search "Reading one extended attribute.",
    link Link Action "Hard links.",
    listxattr Listxattr Search "Listing extended attributes.",
    mkdir Mkdir Create "Creating directories.",
    mknod Mknod Create "Creating device nodes, pipes and sockets.",
    open Open Search "Opening files that exist.",
    readlink Readlink Search "Reading symbolic links.",
    removexattr Removexattr Action "Removing extended attributes.",
    rename Rename Action "Renaming.",
    rmdir Rmdir Action "Removing directories.",
    setxattr Setxattr Action "Setting extended attributes.",
    symlink Symlink Create "Creating symbolic links.",
    truncate Truncate Action "Changing sizes by path.",
    unlink Unlink Action "Removing files.",
    utimens Utimens Action "Changing times.",
}

/// The policy of every function, and what goes with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policies {
    /// In the order of [`Function::ALL`].
    by_function: [Policy; Function::ALL.len()],
    /// `func.readdir`, which is no policy: all branches are listed.
    pub readdir: ReaddirRule,
    /// `ignorepponrename`.
    pub ignorepponrename: bool,
}

impl Default for Policies {
    fn default() -> Self {
        Self {
            by_function: Function::ALL.map(|function| function.category().default_policy()),
            readdir: ReaddirRule::Sequential,
            ignorepponrename: false,
        }
    }
}

impl Policies {
    /// The policy of one function.
    pub const fn get(&self, function: Function) -> Policy {
        self.by_function[function as usize]
    }

    /// Sets the policy of one function.
    pub fn set(&mut self, function: Function, policy: Policy) {
        self.by_function[function as usize] = policy;
    }

    /// Sets every function of a category.
    pub fn set_category(&mut self, category: Category, policy: Policy) {
        for function in category.functions() {
            self.set(function, policy);
        }
    }

    /// The category's policy, or the sorted distinct policies joined by `,` when its functions
    /// differ (as mergerfs reports it; that form cannot be set).
    pub fn category_text(&self, category: Category) -> String {
        let mut names: Vec<_> = category
            .functions()
            .map(|function| self.get(function).name())
            .collect();
        names.sort_unstable();
        names.dedup();
        names.join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn categories_cover_every_function_once() {
        let count = |category: Category| category.functions().count();
        assert_eq!(count(Category::Action), 10);
        assert_eq!(count(Category::Create), 4);
        assert_eq!(count(Category::Search), 6);
        assert!(Function::ALL.is_sorted_by_key(|function| function.name()));
    }

    #[test]
    fn category_sets_all_its_functions_and_only_those() {
        let mut policies = Policies::default();
        policies.set_category(Category::Create, Policy::Mfs);
        assert_eq!(policies.get(Function::Mkdir), Policy::Mfs);
        assert_eq!(policies.get(Function::Symlink), Policy::Mfs);
        assert_eq!(policies.get(Function::Rename), Policy::EpAll);
        policies.set(Function::Create, Policy::EpMfs);
        assert_eq!(policies.category_text(Category::Create), "epmfs,mfs");
        assert_eq!(policies.category_text(Category::Search), "ff");
    }
}
