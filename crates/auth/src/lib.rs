//! Authenticators outside of the proxy: LDAP, PAM, GSSAPI and OAuth, users looked up in servers, and passwords from files and commands.
//!
//! A question leaves the proxy's workers through its desk ([`proxy::VerifyDesk`]) and is answered here, on the control threads.

mod authenticators;
mod gss;
mod helper;
mod ldap;
mod lookup;
mod oauth;
mod pam;
mod passwords;

pub use authenticators::ExternalAuthenticators;
pub use lookup::Lookup;
pub use passwords::{AskedAgain, Passwords, filled};
