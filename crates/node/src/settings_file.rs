//! `postgresql.auto.conf` of a stopped server, and connection strings in it. Pure.

use process::settings_file::{setting, without};

/// Settings that a node never takes over from another, nor from its own past as a primary.
const OWN: [&str; 4] =
    ["primary_conninfo", "primary_slot_name", "default_transaction_read_only", "recovery_target_timeline"];
/// Part of the value by which a switchover locks a server.
const LOCK: &str = "kingpost_switchover";

/// Returns the file without the settings of another part in the cluster: upstream, fence, and the lock of a switchover.
pub(crate) fn cleaned(text: &str) -> String {
    without(text, |name, line| OWN.contains(&name) || line.contains(LOCK))
}

/// Returns the file with the upstream of a standby.
pub(crate) fn following(text: &str, conninfo: &str, slot: &str) -> String {
    [cleaned(text), setting("primary_conninfo", conninfo), setting("primary_slot_name", slot)].concat()
}

/// Makes a connection string of keywords and values; those without a value are left out.
pub(crate) fn conninfo(pairs: &[(&str, &str)]) -> String {
    failover::conninfo::write(pairs.iter().copied().filter(|(_, value)| !value.is_empty()))
}

/// Returns a password file's content: one login, at any host.
pub(crate) fn password_file(user: &str, password: &str) -> String {
    let escaped = |text: &str| text.replace('\\', "\\\\").replace(':', "\\:");
    format!("*:*:*:{}:{}\n", escaped(user), escaped(password))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn files() {
        let text = "# Do not edit\nwork_mem = '8MB'\nprimary_conninfo = 'host=a'\nprimary_slot_name = 'x'\n\
                    default_transaction_read_only = 'on'\n\
                    session_preload_libraries = 'kingpost_switchover_has_locked_this_server'\n";
        assert_eq!(cleaned(text), "# Do not edit\nwork_mem = '8MB'\n");
        assert_eq!(
            following(text, "host='b'", "s"),
            "# Do not edit\nwork_mem = '8MB'\nprimary_conninfo = 'host=''b'''\nprimary_slot_name = 's'\n"
        );
    }

    #[test]
    fn words() {
        assert_eq!(conninfo(&[("host", "a b"), ("sslmode", ""), ("user", "o'x\\")]), r"host='a b' user='o\'x\\'");
        assert_eq!(password_file("u", r"a:b\"), "*:*:*:u:a\\:b\\\\\n");
    }

    proptest! {
        #[test]
        fn a_file_is_cleaned_once(text in "(primary_conninfo = 'x'\n|a = 'b'\n|\\PC{0,20}\n){0,6}") {
            let once = cleaned(&text);
            prop_assert_eq!(cleaned(&once), once.clone());
            prop_assert_eq!(cleaned(&following(&text, "host=x", "s")), once);
        }
    }
}
