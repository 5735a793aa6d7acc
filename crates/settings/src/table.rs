//! Tables of settings.

use crate::key::{Key, Takes};
use crate::rows::Row;

/// A table of the configuration file.
pub trait Table {
    /// Keys, in the order of their declaration.
    const KEYS: &'static [Key];

    /// Adds the rows of the table, which is at `path`. `takes`: time at which changes in it take effect, if not at the next start for a key.
    fn add(&self, path: &str, takes: Takes, rows: &mut Vec<Row>);
}

/// Declares a table of settings, or the choices of one.
///
/// A field is `/// doc`, visibility, `name: Type`, the default behind `=`, and limits and properties behind commas, each a method of
/// [`Key`]. A setting without a default is required. `struct Name: Default` has the declared defaults as its `Default`. Fields
/// behind `=>` are no settings: the code that uses the table sets them.
///
/// An enum has the name of each choice behind `=`. Names behind `;` can't be configured.
#[macro_export]
macro_rules! settings {
    ($(#[$meta:meta])* $vis:vis struct $name:ident: Default $body:tt) => {
        $crate::settings! { @struct [$(#[$meta])* $vis] $name $body }
        $crate::settings! { @Default $name $body }
    };
    ($(#[$meta:meta])* $vis:vis struct $name:ident $body:tt) => {
        $crate::settings! { @struct [$(#[$meta])* $vis] $name $body }
    };

    (@struct [$(#[$meta:meta])* $vis:vis] $name:ident {
        $(
            $(#[doc = $doc:literal])*
            $fvis:vis $field:ident : $type:ty $(= $default:expr)? $(, $how:ident ( $($argument:tt)* ) )* ;
        )*
        $( => $( $(#[$bmeta:meta])* $bvis:vis $beside:ident : $btype:ty ; )* )?
    }) => {
        $(#[$meta])*
        $vis struct $name {
            $( $(#[doc = $doc])* $fvis $field: $type, )*
            $( $( $(#[$bmeta])* $bvis $beside: $btype, )* )?
        }

        impl $crate::Table for $name {
            const KEYS: &'static [$crate::Key] = &[$(
                $crate::Key::new(
                    stringify!($field),
                    concat!($($doc, "\n"),*),
                    <$type as $crate::Setting>::KIND,
                )
                $(.or(|| $crate::Setting::texts(&{ let default: $type = $default; default })))?
                $(.$how($($argument)*))*
            ),*];

            fn add(&self, path: &str, takes: $crate::Takes, rows: &mut Vec<$crate::Row>) {
                let mut keys = Self::KEYS.iter();
                $(
                    if let Some(key) = keys.next() {
                        let takes = if key.takes == $crate::Takes::AtStart { key.takes } else { takes };
                        $crate::Setting::add_rows(&self.$field, key, format!("{path}.{}", key.name), takes, rows);
                    }
                )*
            }
        }

        impl $crate::Setting for $name {
            const KIND: $crate::Kind = $crate::Kind::Table(<$name as $crate::Table>::KEYS);

            fn read<'de, D: $crate::expansion::serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                $crate::expansion::serde::Deserialize::deserialize(from)
            }

            fn write<S: $crate::expansion::serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                $crate::expansion::serde::Serialize::serialize(self, to)
            }

            fn toml(&self) -> Option<String> {
                None
            }

            fn add_rows(
                &self,
                _: &'static $crate::Key,
                path: String,
                takes: $crate::Takes,
                rows: &mut Vec<$crate::Row>,
            ) {
                $crate::Table::add(self, &path, takes, rows);
            }
        }

        impl $crate::expansion::serde::Serialize for $name {
            fn serialize<S: $crate::expansion::serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                use $crate::expansion::serde::ser::SerializeStruct as _;
                let keys = <$name as $crate::Table>::KEYS;
                let written = keys.iter().filter(|key| key.written).count();
                let mut table = to.serialize_struct(stringify!($name), written)?;
                let mut keys = keys.iter();
                $(
                    match keys.next() {
                        Some(key) if key.written => table.serialize_field(key.name, &$crate::Write(&self.$field))?,
                        Some(key) => table.skip_field(key.name)?,
                        None => {}
                    }
                )*
                table.end()
            }
        }

        impl<'de> $crate::expansion::serde::Deserialize<'de> for $name {
            fn deserialize<D: $crate::expansion::serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                use $crate::expansion::serde::de::{Error, MapAccess, Visitor};

                const KEYS: &[$crate::Key] = <$name as $crate::Table>::KEYS;
                const NAMES: &[&str] = &$crate::expansion::names::<{ KEYS.len() }>(KEYS);

                struct Fields;

                impl<'de> Visitor<'de> for Fields {
                    type Value = $name;

                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str(concat!("struct ", stringify!($name)))
                    }

                    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<$name, A::Error> {
                        $( let mut $field: Option<$type> = None; )*
                        while let Some(name) = map.next_key::<String>()? {
                            let mut keys = KEYS.iter();
                            $(
                                if let Some(key) = keys.next() && key.name == name {
                                    if $field.is_some() {
                                        return Err(A::Error::duplicate_field(key.name));
                                    }
                                    $field = Some(map.next_value::<$crate::Read<$type>>()?.0);
                                    continue;
                                }
                            )*
                            return Err(A::Error::unknown_field(&name, NAMES));
                        }
                        Ok($name {
                            $( $field: $crate::settings!(@value $field $(, $default)?), )*
                            $( $( $beside: Default::default(), )* )?
                        })
                    }
                }

                from.deserialize_struct(stringify!($name), NAMES, Fields)
            }
        }
    };

    (@value $field:ident, $default:expr) => {
        match $field {
            Some(value) => value,
            None => $default,
        }
    };
    (@value $field:ident) => {
        match $field {
            Some(value) => value,
            None => return Err(A::Error::missing_field(stringify!($field))),
        }
    };

    (@Default $name:ident {
        $(
            $(#[doc = $doc:literal])*
            $fvis:vis $field:ident : $type:ty = $default:expr $(, $how:ident ( $($argument:tt)* ) )* ;
        )*
        $( => $( $(#[$bmeta:meta])* $bvis:vis $beside:ident : $btype:ty ; )* )?
    }) => {
        impl Default for $name {
            fn default() -> Self {
                $name {
                    $( $field: $default, )*
                    $( $( $beside: Default::default(), )* )?
                }
            }
        }
    };

    ($(#[$meta:meta])* $vis:vis enum $name:ident {
        $( $(#[$vmeta:meta])* $variant:ident = $text:literal ),+
        $( ; $( $(#[$hmeta:meta])* $hidden:ident = $htext:literal ),+ )? $(,)?
    }) => {
        $(#[$meta])*
        $vis enum $name {
            $( $(#[$vmeta])* $variant, )+
            $( $( $(#[$hmeta])* $hidden, )+ )?
        }

        impl $name {
            /// Returns the name in the configuration.
            #[must_use]
            $vis fn name(self) -> &'static str {
                match self {
                    $( $name::$variant => $text, )+
                    $( $( $name::$hidden => $htext, )+ )?
                }
            }
        }

        impl $crate::Setting for $name {
            const KIND: $crate::Kind = $crate::Kind::Choice(&[$($text),+]);

            fn read<'de, D: $crate::expansion::serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                $crate::expansion::serde::Deserialize::deserialize(from)
            }

            fn write<S: $crate::expansion::serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(self.name())
            }

            fn toml(&self) -> Option<String> {
                Some(format!("{:?}", self.name()))
            }

            fn text(&self) -> String {
                self.name().to_owned()
            }
        }

        impl $crate::expansion::serde::Serialize for $name {
            fn serialize<S: $crate::expansion::serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(self.name())
            }
        }

        impl<'de> $crate::expansion::serde::Deserialize<'de> for $name {
            fn deserialize<D: $crate::expansion::serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text = <String as $crate::expansion::serde::Deserialize>::deserialize(from)?;
                match text.as_str() {
                    $( $text => Ok($name::$variant), )+
                    _ => Err($crate::expansion::serde::de::Error::unknown_variant(&text, &[$($text),+])),
                }
            }
        }
    };
}
