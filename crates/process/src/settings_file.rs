//! Configuration files of PostgreSQL servers: `postgresql.conf`, `postgresql.auto.conf`. Pure.

/// Returns the text without the lines for which `goes` is true, asked with the name of the line's setting, in lower case, and the line.
pub fn without(text: &str, goes: impl Fn(&str, &str) -> bool) -> String {
    let stays = |line: &&str| {
        let name = line.trim_start().split(|c: char| c == '=' || c.is_whitespace()).next().unwrap_or_default();
        !goes(&name.to_ascii_lowercase(), line)
    };
    text.lines().filter(stays).map(|line| format!("{line}\n")).collect()
}

/// Returns the line of a setting. In a value of such a file a backslash is an escape, unlike in SQL.
pub fn setting(name: &str, value: &str) -> String {
    format!("{name} = '{}'\n", value.replace('\\', "\\\\").replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let text = "# Do not edit\nwork_mem = '8MB'\n  Primary_ConnInfo='host=a'\n";
        assert_eq!(without(text, |name, _| name == "primary_conninfo"), "# Do not edit\nwork_mem = '8MB'\n");
        assert_eq!(without(text, |_, line| line.contains("8MB")), "# Do not edit\n  Primary_ConnInfo='host=a'\n");
        assert_eq!(setting("primary_conninfo", r"user='o\'x'"), "primary_conninfo = 'user=''o\\\\''x'''\n");
    }
}
