//! Shell completions: clap's, with the words of `-o` completed from the option table.

use std::collections::BTreeMap;
use std::fmt::Write;

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use strandfs_options::facts::listed_values;
use strandfs_options::table::{Kind, OptionDef, Status, TABLE};

use crate::args::Arguments;

/// The shells, each with the name its completions are installed under.
pub const FILES: &[(Shell, &str)] = &[
    (Shell::Bash, "strandfs.bash"),
    (Shell::Zsh, "_strandfs"),
    (Shell::Fish, "strandfs.fish"),
];

/// The script for one shell.
pub fn script(shell: Shell) -> String {
    let mut script = Vec::new();
    let mut command = visible(&Arguments::command());
    clap_complete::generate(shell, &mut command, "strandfs", &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    match shell {
        Shell::Bash => bash(script),
        Shell::Zsh => zsh(&script),
        Shell::Fish => fish(script),
        _ => script,
    }
}

/// The command without what is hidden, which clap would complete all the same.
fn visible(command: &Command) -> Command {
    let mut shown = Command::new(command.get_name().to_owned())
        .visible_aliases(command.get_visible_aliases().map(str::to_owned))
        .disable_help_subcommand(true);
    if let Some(about) = command.get_about() {
        shown = shown.about(about.clone());
    }
    if let Some(version) = command.get_version() {
        shown = shown.version(version.to_owned());
    }
    let args = command.get_arguments().filter(|arg| !arg.is_hide_set());
    let subs = command.get_subcommands().filter(|sub| !sub.is_hide_set());
    shown.args(args.cloned()).subcommands(subs.map(visible))
}

/// One word that can be given after `-o`.
struct Word {
    name: &'static str,
    takes_value: bool,
    values: Vec<&'static str>,
    help: &'static str,
}

fn words() -> Vec<Word> {
    let active = TABLE
        .iter()
        .filter(|option| option.status == Status::Active);
    let mut words: Vec<Word> = Vec::new();
    for option in active {
        let flag = matches!(option.value.kind, Kind::Bool | Kind::AutoBool);
        words.push(Word {
            name: option.name,
            takes_value: !flag || option.opposite.is_none(),
            values: listed_values(option),
            help: option.help,
        });
        words.extend(option.opposite.map(|name| opposite(name, option)));
    }
    words
}

fn opposite(name: &'static str, option: &OptionDef) -> Word {
    Word {
        name,
        takes_value: false,
        values: Vec::new(),
        help: match option.default {
            "false" => "the default",
            _ => "the reverse",
        },
    }
}

/// Bash splits words at `=` and `:`, so the argument of `-o` is put together again first.
fn bash(script: String) -> String {
    let mut names = String::new();
    let mut takers: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for word in words() {
        let end = if word.takes_value { "=" } else { "" };
        let _ = write!(names, " {}{end}", word.name);
        if word.takes_value && !word.values.is_empty() {
            takers
                .entry(word.values.join(" "))
                .or_default()
                .push(word.name);
        }
    }
    let mut values = String::new();
    for (words, names) in takers {
        let names = names.join(" | ");
        let _ = writeln!(values, "        {names}) words=\"{words}\" ;;");
    }
    let ours = format!(
        r#"
_strandfs_options() {{
    local item="$1" head="" words
    if [[ "$item" == *,* ]]; then
        head="${{item%,*}},"
        item="${{item##*,}}"
    fi
    if [[ "$item" != *=* ]]; then
        words="{names}"
        # A list before the word belongs to it unless readline has cut it off at "=" or ":".
        head="${{head##*[=:]}}"
        COMPREPLY=($(compgen -P "$head" -W "$words" -- "$item"))
        compopt -o nospace 2>/dev/null
        return
    fi
    case "${{item%%=*}}" in
{values}        *) words="" ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "${{item#*=}}"))
    compopt -o nospace 2>/dev/null
}}

_strandfs_or_options() {{
    local at=$COMP_CWORD argument=""
    while ((at > 1)) && [[ "${{COMP_WORDS[at]}}" == [=:] || "${{COMP_WORDS[at - 1]}}" == [=:] ]]; do
        argument="${{COMP_WORDS[at]}}$argument"
        ((at--))
    done
    argument="${{COMP_WORDS[at]}}$argument"
    case "${{COMP_WORDS[at - 1]}}" in
        -o | --options)
            COMPREPLY=()
            _strandfs_options "$argument"
            ;;
        *) _strandfs "$@" ;;
    esac
}}

complete -F _strandfs_or_options -o bashdefault -o default strandfs
"#,
        names = names.trim_start()
    );
    script + &ours
}

/// Zsh has a helper for lists of `name=value`.
fn zsh(script: &str) -> String {
    let mut values = String::new();
    for word in words() {
        let help = word.help.replace('\'', "'\\''").replace(':', "\\:");
        let value = match (word.takes_value, word.values.as_slice()) {
            (false, _) => String::new(),
            (true, []) => ":value:_default".to_owned(),
            (true, values) => format!(":value:({})", values.join(" ")),
        };
        let _ = writeln!(values, "        '{}[{help}]{value}' \\", word.name);
    }
    let ours = format!(
        "_strandfs_options() {{\n    _values -s , -S = 'option' \\\n{values}        && return 0\n}}\n\n"
    );
    let script = script.replace(":OPTIONS:_default", ":OPTIONS:_strandfs_options");
    // The functions come before the line that registers or calls them.
    match script.rfind("if [ \"$funcstack[1]\"") {
        Some(at) => format!("{}{ours}{}", &script[..at], &script[at..]),
        None => script + &ours,
    }
}

/// Fish offers whole words, so what stands before the last comma is repeated.
fn fish(script: String) -> String {
    let (mut names, mut values) = (String::new(), String::new());
    for word in words() {
        let end = if word.takes_value { "=" } else { "" };
        let help = word.help.replace('\'', "\\'");
        let name = word.name;
        let _ = writeln!(
            names,
            "            printf '%s\\t%s\\n' \"$head\"'{name}{end}' '{help}'"
        );
        if word.takes_value && !word.values.is_empty() {
            let words = word.values.join(" ");
            let _ = writeln!(
                values,
                "        case '{name}=*'\n            printf '%s\\n' \"$head\"'{name}='{{{}}}",
                words.replace(' ', ",")
            );
        }
    }
    let ours = format!(
        "
function __strandfs_options
    set -l head (string match -r '^.*,' -- (commandline -ct))
    switch (string replace -r '^.*,' '' -- (commandline -ct))
{values}        case '*'
{names}    end
end

complete -c strandfs -n '__fish_seen_subcommand_from mount' -s o -l options -x -a '(__strandfs_options)'
"
    );
    script + &ours
}
