//! Addresses that clients connect to.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use settings::{Kind, Setting, Table as _};

use super::RouteTo;

/// An address that clients connect to: a string, or a table with `route`.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(from = "ListenForm", into = "ListenForm")]
pub struct Listen {
    /// `host:port`, or the absolute path of a Unix socket to make. Port 0 lets the system choose.
    pub address: String,
    /// Routing of statements of clients of this address, unless a hint says otherwise.
    pub route: Option<RouteTo>,
    /// The permissions of a Unix socket; `None`: by the process's umask.
    pub mode: Option<SocketMode>,
    /// The group of a Unix socket, by name or number; `None`: the process's.
    pub group: Option<String>,
}

impl Listen {
    /// Creates a listener of an address, without further settings.
    #[must_use]
    pub fn at(address: impl Into<String>) -> Listen {
        Listen { address: address.into(), route: None, mode: None, group: None }
    }
}

impl Setting for Listen {
    const KIND: Kind = Kind::Table(ListenTable::KEYS);

    fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Listen::deserialize(from)
    }

    fn write<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.serialize(to)
    }

    fn toml(&self) -> Option<String> {
        self.address.toml()
    }

    fn text(&self) -> String {
        self.address.clone()
    }
}

/// Permissions of a Unix socket, in octal digits: `"0770"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct SocketMode(pub u32);

/// A text that is no [`SocketMode`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("found {0:?}, expected permissions in octal digits such as \"0770\"")]
pub struct NoMode(String);

impl TryFrom<String> for SocketMode {
    type Error = NoMode;

    fn try_from(text: String) -> Result<SocketMode, NoMode> {
        let octal = (3..=4).contains(&text.len()) && text.bytes().all(|b| (b'0'..=b'7').contains(&b));
        match u32::from_str_radix(&text, 8) {
            Ok(mode) if octal && mode <= 0o777 => Ok(SocketMode(mode)),
            _ => Err(NoMode(text)),
        }
    }
}

impl From<SocketMode> for String {
    fn from(mode: SocketMode) -> String {
        format!("{:04o}", mode.0)
    }
}

impl Setting for SocketMode {
    const KIND: Kind = Kind::Text;

    fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        SocketMode::deserialize(from)
    }

    fn write<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.serialize(to)
    }

    fn toml(&self) -> Option<String> {
        String::from(*self).toml()
    }
}

::settings::settings! {
    /// An address with settings of its own.
    #[derive(Debug, Clone, PartialEq)]
    pub struct ListenTable {
        /// Address, `host:port`, or the absolute path of a Unix socket to make.
        pub address: String;
        /// Routing of statements of clients of this address, unless a hint says otherwise.
        pub route: Option<RouteTo> = None;
        /// Permissions of a Unix socket.
        pub mode: Option<SocketMode> = None;
        /// Group of a Unix socket, by name or number.
        pub group: Option<String> = None;
    }
}

#[derive(Deserialize, Serialize)]
#[serde(untagged)]
enum ListenForm {
    Plain(String),
    Full(ListenTable),
}

impl From<ListenForm> for Listen {
    fn from(form: ListenForm) -> Listen {
        match form {
            ListenForm::Plain(address) => Listen::at(address),
            ListenForm::Full(ListenTable { address, route, mode, group }) => Listen { address, route, mode, group },
        }
    }
}

impl From<Listen> for ListenForm {
    fn from(listen: Listen) -> ListenForm {
        let Listen { address, route, mode, group } = listen;
        match (route, mode, &group) {
            (None, None, None) => ListenForm::Plain(address),
            _ => ListenForm::Full(ListenTable { address, route, mode, group }),
        }
    }
}
