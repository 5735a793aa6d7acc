//! Rows of the schema: a key with the kind of its value.

/// Kind of a value.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// Any string.
    Text,
    /// Any string, never shown.
    Secret,
    /// `true` or `false`.
    Boolean,
    /// A number without a fraction.
    Integer {
        /// Smallest one.
        min: i64,
        /// Greatest one.
        max: i64,
    },
    /// A number above 0, at most 1.
    Share,
    /// `"30s"`.
    Duration {
        /// True if `"0s"` is allowed.
        zero: bool,
    },
    /// One of these strings.
    Choice(&'static [&'static str]),
    /// A string of a certain form.
    Form(&'static Form),
    /// An array of strings.
    Texts,
    /// An array of strings, never shown.
    Secrets,
    /// An array of strings or tables.
    TextsOrTables(&'static [Key]),
    /// `[…]`.
    Table(&'static [Key]),
    /// `[[…]]`.
    Tables(&'static [Key]),
}

/// Form of a string.
#[derive(Debug)]
pub struct Form {
    /// Description for a message: "expected …".
    pub expected: &'static str,
    /// Regular expression of such a string, for a JSON schema.
    pub pattern: &'static str,
    /// Returns true if a string has the form.
    pub fits: fn(&str) -> bool,
}

/// Time at which a changed setting takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    /// While the process runs.
    Live,
    /// At the next start.
    AtStart,
}

/// A setting, without its place and its value.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// Name in the file.
    pub name: &'static str,
    /// Lines of the doc, each with an end of line.
    pub doc: &'static str,
    /// Kind of the value.
    pub kind: Kind,
    /// True if the table must have the key.
    pub required: bool,
    /// Default; not set: there is none, or it is that the setting is not set.
    pub default: fn() -> Texts,
    /// Value in the described file, as TOML, for a setting that has no default. For an array of tables: lines of the file.
    pub example: Option<&'static str>,
    /// True if the example is in force in the described file, which would be incomplete without it.
    pub shown: bool,
    /// True if the value is serialized.
    pub written: bool,
    /// PgBouncer's name for the same setting.
    pub pgbouncer: Option<&'static str>,
    /// Time at which a change takes effect. For a table: of all settings in it.
    pub takes: Takes,
}

/// Texts of a value.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Texts {
    /// The value as TOML; None if it is not set, or is a table.
    pub toml: Option<String>,
    /// The value in a row of `SHOW CONFIG`: without quotation marks, and a duration as its number of seconds.
    pub row: String,
}

impl Key {
    /// Creates a required key of this kind.
    #[must_use]
    pub const fn new(name: &'static str, doc: &'static str, kind: Kind) -> Key {
        Key {
            name,
            doc,
            kind,
            required: true,
            default: Texts::default,
            example: None,
            shown: false,
            written: !kind.is_secret(),
            pgbouncer: None,
            takes: Takes::Live,
        }
    }

    /// Adds a default.
    #[must_use]
    pub const fn or(self, default: fn() -> Texts) -> Key {
        Key { required: false, default, ..self }
    }

    /// Sets the name in the file, where that is no identifier.
    #[must_use]
    pub const fn named(self, name: &'static str) -> Key {
        Key { name, ..self }
    }

    /// Sets the kind.
    #[must_use]
    pub const fn of(self, kind: Kind) -> Key {
        Key { kind, ..self }
    }

    /// Bounds an integer.
    #[must_use]
    pub const fn range(self, min: i64, max: i64) -> Key {
        assert!(matches!(self.kind, Kind::Integer { .. }), "only integers have a range");
        assert!(min <= max, "the range is empty");
        Key { kind: Kind::Integer { min, max }, ..self }
    }

    /// Allows `"0s"`, for never.
    #[must_use]
    pub const fn or_never(self) -> Key {
        assert!(matches!(self.kind, Kind::Duration { .. }), "only durations may be never");
        Key { kind: Kind::Duration { zero: true }, ..self }
    }

    /// Allows some of the type's choices only.
    #[must_use]
    pub const fn only(self, choices: &'static [&'static str]) -> Key {
        assert!(matches!(self.kind, Kind::Choice(_)), "only a choice has fewer choices");
        Key { kind: Kind::Choice(choices), ..self }
    }

    /// Hides the value: it is never serialized, and in no message.
    #[must_use]
    pub const fn secret(self) -> Key {
        let kind = match self.kind {
            Kind::Text | Kind::Secret => Kind::Secret,
            Kind::Texts | Kind::Secrets => Kind::Secrets,
            _ => panic!("only texts are secrets"),
        };
        Key { kind, written: false, ..self }
    }

    /// Hides the value in messages, and serializes it nevertheless: only a part of it may be a secret, or it is the hash of one.
    #[must_use]
    pub const fn hidden(self) -> Key {
        Key { written: true, ..self.secret() }
    }

    /// Gives an example: TOML that is commented out in the described file.
    #[must_use]
    pub const fn example(self, toml: &'static str) -> Key {
        Key { example: Some(toml), ..self }
    }

    /// Gives an example that is in force in the described file.
    #[must_use]
    pub const fn shown(self, toml: &'static str) -> Key {
        Key { example: Some(toml), shown: true, ..self }
    }

    /// Puts an array of tables in force in the described file.
    #[must_use]
    pub const fn shown_table(self) -> Key {
        Key { shown: true, ..self }
    }

    /// Names the same setting of PgBouncer's, by which `SHOW CONFIG` and `SET` know it.
    #[must_use]
    pub const fn pgbouncer(self, name: &'static str) -> Key {
        Key { pgbouncer: Some(name), ..self }
    }

    /// Says that a change takes effect at the next start only.
    #[must_use]
    pub const fn at_start(self) -> Key {
        Key { takes: Takes::AtStart, ..self }
    }

    /// Returns the keys of a table, or of each table of an array.
    #[must_use]
    pub const fn inner(&self) -> &'static [Key] {
        match self.kind {
            Kind::Table(keys) | Kind::Tables(keys) | Kind::TextsOrTables(keys) => keys,
            _ => &[],
        }
    }
}

impl Kind {
    /// Describes the kind for a message.
    #[must_use]
    pub fn expected(self) -> String {
        match self {
            Kind::Text | Kind::Secret => "a string".into(),
            Kind::Boolean => "true or false".into(),
            Kind::Integer { min, max } => format!("an integer from {min} to {max}"),
            Kind::Share => "a number above 0, at most 1".into(),
            Kind::Duration { zero: false } => "a duration above zero such as \"30s\", \"500ms\" or \"1h\"".into(),
            Kind::Duration { zero: true } => "a duration such as \"30s\" or \"1h\", or \"0s\" for never".into(),
            Kind::Choice(choices) => match choices {
                [all @ .., last] if !all.is_empty() => {
                    let all: Vec<String> = all.iter().map(|choice| format!("{choice:?}")).collect();
                    format!("{} or {last:?}", all.join(", "))
                }
                _ => format!("{choices:?}"),
            },
            Kind::Form(form) => form.expected.into(),
            Kind::Texts | Kind::Secrets => "an array of strings".into(),
            Kind::TextsOrTables(_) => "an array of addresses".into(),
            Kind::Table(_) => "a table".into(),
            Kind::Tables(_) => "an array of tables".into(),
        }
    }

    /// True if the value is never shown.
    #[must_use]
    pub const fn is_secret(self) -> bool {
        matches!(self, Kind::Secret | Kind::Secrets)
    }

    /// Returns the kind of an array of such values.
    #[must_use]
    pub const fn list(self) -> Kind {
        match self {
            Kind::Table(keys) => Kind::Tables(keys),
            Kind::Secret => Kind::Secrets,
            Kind::Text | Kind::Choice(_) | Kind::Form(_) => Kind::Texts,
            _ => panic!("arrays are of strings or tables"),
        }
    }
}

/// Returns the keys with one of them required.
#[must_use]
pub const fn required<const N: usize>(name: &str, keys: &[Key]) -> [Key; N] {
    let mut all = [Key::new("", "", Kind::Text); N];
    let mut at = 0;
    while at < N {
        all[at] = keys[at];
        if same(keys[at].name, name) {
            all[at].required = true;
        }
        at += 1;
    }
    all
}

/// Returns the names of the keys.
#[must_use]
pub const fn names<const N: usize>(keys: &[Key]) -> [&'static str; N] {
    let mut names = [""; N];
    let mut at = 0;
    while at < N {
        names[at] = keys[at].name;
        at += 1;
    }
    names
}

const fn same(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    if one.len() != other.len() {
        return false;
    }
    let mut at = 0;
    while at < one.len() {
        if one[at] != other[at] {
            return false;
        }
        at += 1;
    }
    true
}
