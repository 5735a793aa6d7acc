//! The file of the guide that describes every setting: docs/guide/kingpost.toml is this text.

use super::schema::ROOT;

const HEAD: &str = r#"# Every key of Kingpost's configuration with its default. A line that starts with `#` and no space after it is a key
# that has no default; the values in it are examples. [[cluster.nodes]] and [[proxy.users]] hold examples too: without
# a node and, with scram-sha-256, without a user there is nothing to serve.
#
# Each key can be set by an environment variable, stronger than this file: proxy.pool.size is
# KINGPOST__PROXY__POOL__SIZE. Check both with `kingpost check --config kingpost.toml`.
"#;

/// Returns the file that describes every key, with its default: `kingpost config default` prints it.
pub fn described() -> String {
    format!("{HEAD}{}", settings::guide::toml(ROOT))
}

#[cfg(test)]
mod tests {
    use settings::{Key, Kind};

    /// `kingpost config default > docs/guide/kingpost.toml` writes it.
    #[test]
    fn the_guides_file_is_generated() {
        let file = include_str!("../../../docs/guide/kingpost.toml");
        for (at, (found, expected)) in file.lines().zip(super::described().lines()).enumerate() {
            assert_eq!(found, expected, "docs/guide/kingpost.toml:{}", at + 1);
        }
        assert_eq!(file, super::described());
    }

    /// Returns the keys of the table at a path.
    fn keys_of(path: &str) -> &'static [Key] {
        path.split('.').fold(super::ROOT, |keys, step| {
            keys.iter().find(|key| key.name == step).unwrap_or_else(|| panic!("{path} is no table")).inner()
        })
    }

    /// A table of Markdown stands behind a line `<!-- keys: PATH -->`.
    #[test]
    fn tables_of_keys_in_the_guide_are_generated() {
        let page = include_str!("../../../docs/guide/configuration.md");
        let mut found = 0;
        for part in page.split("<!-- keys: ").skip(1) {
            let (path, rest) = part.split_once(" -->\n").expect("the end of the mark");
            let expected = settings::guide::markdown(path, keys_of(path));
            assert!(
                rest.starts_with(&format!("{expected}\n")),
                "docs/guide/configuration.md, [{path}]: expected\n{expected}"
            );
            found += 1;
        }
        assert!(found >= 4, "{found}");
    }

    #[test]
    fn every_setting_has_a_doc_and_a_value_in_the_guide() {
        fn visit(keys: &'static [Key], path: &str, count: &mut usize) {
            for key in keys {
                let path = super::super::schema::join(path, key.name);
                assert!(!key.doc.trim().is_empty(), "{path} has no doc");
                let has_value = key.example.is_some() || (key.default)().toml.is_some();
                let in_line = matches!(key.kind, Kind::TextsOrTables(_));
                let is_table = matches!(key.kind, Kind::Table(_) | Kind::Tables(_));
                assert!(has_value || is_table, "{path} has neither a default nor an example");
                *count += 1;
                if !in_line && !path.starts_with("clusters") {
                    visit(key.inner(), &path, count);
                }
            }
        }
        let mut count = 0;
        visit(super::ROOT, "", &mut count);
        assert!(count > 380, "{count}");
    }
}
