//! Policies: one option per function, one per category.

use super::{Group, Kind, OptionDef, Value};
use crate::policy::Policy;
use crate::readdir::ReaddirRule;
use crate::settings::policies::{Category, Function};

const ACCEPTED: &str = "a policy: all, epall, epff, eplfs, eplus, epmfs, eppfrd, eprand, erofs, \
    ff, lfs, lup, lus, mfs, msplfs, msplus, mspmfs, msppfrd, newest, pfrd or rand";

fn parse(text: &str) -> Result<Policy, super::Refused> {
    Ok(text.to_ascii_lowercase().parse()?)
}

macro_rules! category {
    ($name:literal, $category:ident, $default:literal, $help:literal, $full:literal) => {
        OptionDef {
            name: $name,
            group: Group::Policies,
            value: Value {
                kind: Kind::Policy,
                accepted: ACCEPTED,
                bare: None,
                get: |settings| settings.policies.category_text(Category::$category),
                set: |settings, text| {
                    let policy = parse(text)?;
                    settings.policies.set_category(Category::$category, policy);
                    Ok(())
                },
            },
            default: $default,
            example: "all",
            run_time: true,
            recalls: matches!(Category::$category, Category::Search),
            help: $help,
            help_full: $full,
            ..OptionDef::BASE
        }
    };
}

macro_rules! function {
    ($name:literal, $function:ident, $default:literal, $help:literal) => {
        OptionDef {
            name: $name,
            group: Group::Policies,
            value: Value {
                kind: Kind::Policy,
                accepted: ACCEPTED,
                bare: None,
                get: |settings| settings.policies.get(Function::$function).to_string(),
                set: |settings, text| {
                    let policy = parse(text)?;
                    settings.policies.set(Function::$function, policy);
                    Ok(())
                },
            },
            default: $default,
            example: "newest",
            run_time: true,
            recalls: matches!(Function::$function, Function::Getattr),
            help: $help,
            help_full: "Options take effect in order: a category option given later overrides \
                this one.",
            ..OptionDef::BASE
        }
    };
}

pub(super) const OPTIONS: &[OptionDef] = &[
    category!(
        "category.action",
        Action,
        "epall",
        "policy of every change to what exists",
        "Sets chmod, chown, link, removexattr, rename, rmdir, setxattr, truncate, unlink and \
        utimens. Options take effect in order: a func option given later overrides this one."
    ),
    category!(
        "category.create",
        Create,
        "pfrd",
        "policy of making something new",
        "Sets create, mkdir, mknod and symlink. Options take effect in order: a func option \
        given later overrides this one."
    ),
    category!(
        "category.search",
        Search,
        "ff",
        "policy of looking at what exists",
        "Sets access, getattr, getxattr, listxattr, open and readlink. Options take effect in \
        order: a func option given later overrides this one."
    ),
    function!(
        "func.access",
        Access,
        "ff",
        "branch asked about permissions"
    ),
    function!(
        "func.chmod",
        Chmod,
        "epall",
        "branches where a mode changes"
    ),
    function!(
        "func.chown",
        Chown,
        "epall",
        "branches where an owner changes"
    ),
    function!(
        "func.create",
        Create,
        "pfrd",
        "branch that receives a new file"
    ),
    function!(
        "func.getattr",
        Getattr,
        "ff",
        "branch whose attributes are shown"
    ),
    function!(
        "func.getxattr",
        Getxattr,
        "ff",
        "branch whose extended attribute is read"
    ),
    function!(
        "func.link",
        Link,
        "epall",
        "branches where a hard link is made"
    ),
    function!(
        "func.listxattr",
        Listxattr,
        "ff",
        "branch whose extended attributes are listed"
    ),
    function!(
        "func.mkdir",
        Mkdir,
        "pfrd",
        "branches that receive a new directory"
    ),
    function!(
        "func.mknod",
        Mknod,
        "pfrd",
        "branches that receive a new special file"
    ),
    function!("func.open", Open, "ff", "branch whose file is opened"),
    function!(
        "func.readlink",
        Readlink,
        "ff",
        "branch whose symbolic link is read"
    ),
    function!(
        "func.removexattr",
        Removexattr,
        "epall",
        "branches losing an extended attribute"
    ),
    function!(
        "func.rename",
        Rename,
        "epall",
        "branches where a name changes"
    ),
    function!(
        "func.rmdir",
        Rmdir,
        "epall",
        "branches where a directory is removed"
    ),
    function!(
        "func.setxattr",
        Setxattr,
        "epall",
        "branches where an extended attribute is set"
    ),
    function!(
        "func.symlink",
        Symlink,
        "pfrd",
        "branches that receive a new symbolic link"
    ),
    function!(
        "func.truncate",
        Truncate,
        "epall",
        "branches where a size changes"
    ),
    function!(
        "func.unlink",
        Unlink,
        "epall",
        "branches where a file is removed"
    ),
    function!(
        "func.utimens",
        Utimens,
        "epall",
        "branches where times change"
    ),
    OptionDef {
        name: "func.readdir",
        group: Group::Policies,
        value: value!(Text ReaddirRule, policies.readdir),
        default: "seq",
        example: "cosr:4",
        run_time: true,
        help: "whether branches are listed one by one or together",
        help_full: "seq: one branch after another. cosr: the directory is opened on all branches \
            at once, then read one after another. cor: opened and read on all at once. The \
            listing is the same, in the order of the branches. cosr and cor pay where opening \
            is slow, as on disks that have to spin up. THREADS: how many threads do it; 0 (the \
            default): one for each core, at most 8; a negative number: the cores divided by \
            it. WAITING: how many directories may wait for each thread, by default 2; what \
            finds no room is read by the thread that serves the request.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "ignorepponrename",
        group: Group::Policies,
        value: value!(bool policies.ignorepponrename),
        default: "false",
        example: "true",
        run_time: true,
        help: "let rename and link create missing directories",
        help_full: "When the policy of func.create preserves paths (its name begins with ep or \
            msp), rename and link keep to branches that already have the target directory and \
            otherwise fail with EXDEV. True: they create the directory where it is missing.",
        ..OptionDef::BASE
    },
];
