//! Authentication of clients.

use std::time::Duration;

use secret::Secret;
use settings::Kind;

use crate::hba::Fields;

::settings::settings! {
    /// Authentication method of clients.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum AuthMethod {
        /// Without proof. `kingpost check` refuses it for an address that is neither loopback nor a Unix socket.
        Trust = "trust",
        /// SCRAM-SHA-256; under TLS also SCRAM-SHA-256-PLUS.
        ScramSha256 = "scram-sha-256",
        /// MD5, for old clients. A user with a SCRAM verifier is asked for SCRAM nevertheless.
        Md5 = "md5",
        /// A certificate whose common name (CN) is the user's name, or that a name map lets be the user.
        Cert = "cert",
        /// A directory judges the password that the client sends in clear: by the options of the rule, or of `[proxy.ldap]`.
        Ldap = "ldap",
        /// PAM judges the password that the client sends in clear: by the options of the rule, or of `[proxy.pam]`.
        Pam = "pam";
        /// The operating system identifies the user at the other end of a Unix socket. In rules only.
        Peer = "peer",
        /// Kerberos identifies the client, by GSSAPI. In rules only.
        Gss = "gss",
        /// A token that an issuer has signed identifies the client. In rules only.
        OAuth = "oauth",
    }
}

impl AuthMethod {
    /// True if the method proves a client's identity by something other than a secret that the proxy knows: a certificate, the operating system, or
    /// an external authenticator of the password or the token.
    #[must_use]
    pub fn proves_otherwise(self) -> bool {
        matches!(
            self,
            AuthMethod::Cert
                | AuthMethod::Peer
                | AuthMethod::Ldap
                | AuthMethod::Pam
                | AuthMethod::Gss
                | AuthMethod::OAuth
        )
    }
}

::settings::settings! {
    /// `[proxy.auth_query]`: how the accounts of users without a configured secret are looked up.
    #[derive(Clone, PartialEq)]
    pub struct AuthQueryConfig: Default {
        /// Query that, with the user's name as $1, gives one row or none: a name, and a secret as in pg_authid. It must give no secret for a role
        /// that has expired, and no row for one that may not log in: server connections that are open do not notice either. As PgBouncer's since
        /// 1.24.1: "SELECT rolname, CASE WHEN rolvaliduntil < now() THEN NULL ELSE rolpassword END FROM pg_authid WHERE rolname=$1 AND rolcanlogin".
        /// Empty: nobody is looked up.
        pub query: String = String::new();
        /// User that runs the query; cluster.user if not given.
        pub user: Option<String> = None, example(r#""kingpost_lookup""#);
        /// Password of that user.
        pub password: Option<String> = None, secret(), example(r#""change-me""#);
        /// File that holds the password in its first line.
        pub password_file: Option<std::path::PathBuf> = None, example(r#""/etc/kingpost/lookup.password""#);
        /// Program, with its arguments, that writes the password to its standard output.
        pub password_command: Vec<String> = Vec::new(), example(r#"["/usr/local/bin/token-of", "kingpost_lookup"]"#);
        /// Database that the query runs in; cluster.database if not given.
        pub database: Option<String> = None, example(r#""postgres""#);
        /// Time for which a user that was found is used again. A user with open connections is looked up again when it is over, and loses them if the
        /// role is gone, has expired, or may not log in any more.
        pub cache: Duration = Duration::from_secs(60);
        /// Time for which it is remembered that there is no such user.
        pub negative_cache: Duration = Duration::from_secs(5);
        /// Longest time for a lookup.
        pub timeout: Duration = Duration::from_secs(5);
    }
}

impl AuthQueryConfig {
    /// True if users are looked up.
    #[must_use]
    pub fn is_on(&self) -> bool {
        !self.query.is_empty()
    }
}

impl std::fmt::Debug for AuthQueryConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AuthQueryConfig").field("query", &self.query).field("user", &self.user).finish_non_exhaustive()
    }
}

::settings::settings! {
    /// `[[proxy.hba]]`: a rule, with fields as in a line of `pg_hba.conf`.
    #[derive(Clone, PartialEq)]
    pub struct HbaConfig {
        /// Type of connections: "local", "host", "hostssl" or "hostnossl".
        pub kind: String, named("type"), of(Kind::Choice(&["local", "host", "hostssl", "hostnossl"])), example(r#""hostssl""#);
        /// Databases by the names that clients use, separated by commas; "all", "sameuser", "replication" as in pg_hba.conf.
        pub database: String, example(r#""all""#);
        /// Users, separated by commas; "all".
        pub user: String, example(r#""app,reports""#);
        /// An address with a prefix length or a mask, or "all"; not with type "local".
        pub address: Option<String> = None, example(r#""10.0.0.0/8""#);
        /// Authentication method, or "reject"; options may follow, as in a line of pg_hba.conf.
        pub method: String, example(r#""scram-sha-256""#);
    }
}

impl HbaConfig {
    /// Returns the rule's fields.
    #[must_use]
    pub fn fields(&self) -> Fields<'_> {
        Fields {
            kind: &self.kind,
            database: &self.database,
            user: &self.user,
            address: self.address.as_deref(),
            method: &self.method,
        }
    }
}

impl std::fmt::Debug for HbaConfig {
    /// Writes only the name of `method`: an option behind the name may be a password (`ldapbindpasswd`).
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let method: String = self.method.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
        f.debug_struct("HbaConfig")
            .field("kind", &self.kind)
            .field("database", &self.database)
            .field("user", &self.user)
            .field("address", &self.address)
            .field("method", &method)
            .finish_non_exhaustive()
    }
}

::settings::settings! {
    /// `[proxy.ldap]`: the options of `auth = "ldap"`, and those that PostgreSQL's rules do not have.
    #[derive(Debug, Clone, PartialEq)]
    pub struct LdapConfig: Default {
        /// Options of auth = "ldap", as behind the method in a rule. A rule has its own.
        pub options: Option<Secret> = None, example(r#""ldapserver=ldap.example.net ldaptls=1 ldapbasedn=\"dc=example,dc=net\"""#);
        /// CAs that certificates of LDAP servers are verified with, in PEM; not set: the system's.
        pub ca_file: Option<std::path::PathBuf> = None, example(r#""/etc/kingpost/ldap-ca.crt""#);
        /// Time in which all servers of a rule together have to judge a password.
        pub timeout: Duration = Duration::from_secs(10);
        /// Most logins that servers are asked about at a time; up to 1,000 wait. A change counts from the next start.
        pub max_binds: usize = 32, range(1, 1000);
    }
}

::settings::settings! {
    /// `[proxy.pam]`: the options of `auth = "pam"`, and those that PostgreSQL's rules do not have.
    #[derive(Debug, Clone, PartialEq)]
    pub struct PamConfig: Default {
        /// Options of auth = "pam", as behind the method in a rule; none: pamservice=postgresql. A rule has its own.
        pub options: String = String::new(), example(r#""pamservice=kingpost""#);
        /// Program that asks PAM; not set: kingpost-pam beside the running program.
        pub helper: Option<std::path::PathBuf> = None, example(r#""/usr/bin/kingpost-pam""#);
        /// Time in which PAM has to judge a login. Modules that take longer are killed.
        pub timeout: Duration = Duration::from_secs(10);
        /// Most logins that PAM is asked about at a time, each by a process; up to 1,000 wait. A change counts from the next start.
        pub max_checks: usize = 32, range(1, 1000);
    }
}

::settings::settings! {
    /// `[proxy.gss]`: options that PostgreSQL's rules do not have.
    #[derive(Debug, Clone, PartialEq)]
    pub struct GssConfig: Default {
        /// Program that looks at tokens; not set: kingpost-gss beside the running program.
        pub helper: Option<std::path::PathBuf> = None, example(r#""/usr/bin/kingpost-gss""#);
        /// Keytab with the proxy's keys; not set: the system's. Clients ask for postgres/HOST@REALM (libpq: krbsrvname), with the name by which they
        /// reach the proxy.
        pub keytab: Option<std::path::PathBuf> = None, example(r#""/etc/kingpost/krb5.keytab""#);
        /// True if upper and lower case are the same in principals, as with PostgreSQL's krb_caseins_users.
        pub case_insensitive: bool = false;
        /// Time in which a token has to be looked at.
        pub timeout: Duration = Duration::from_secs(10);
        /// Most tokens that are looked at at a time, each by a process; up to 1,000 wait. A change counts from the next start.
        pub max_checks: usize = 32, range(1, 1000);
    }
}

::settings::settings! {
    /// `[proxy.oauth]`: options that PostgreSQL's rules do not have.
    #[derive(Debug, Clone, PartialEq)]
    pub struct OAuthConfig: Default {
        /// Audiences of tokens (aud), one of which a token has to be made for. Needed with such a rule: an issuer makes tokens for other
        /// applications, too.
        pub audience: Vec<String> = Vec::new(), example(r#"["kingpost"]"#);
        /// Claim that says who the bearer is. `email` counts only with `email_verified`.
        pub claim: String = "sub".into();
        /// Claim that says which users the bearer may be, for rules with delegate_ident_mapping=1: a name, or a list of names.
        pub users_claim: Option<String> = None, example(r#""db_users""#);
        /// CAs that certificates of issuers are verified with, in PEM; not set: the system's.
        pub ca_file: Option<std::path::PathBuf> = None, example(r#""/etc/kingpost/oauth-ca.crt""#);
        /// Time in which a token has to be judged, with what is asked of its issuer for it.
        pub timeout: Duration = Duration::from_secs(10);
        /// Most logins that wait for an answer of one issuer; further ones are refused.
        pub max_questions: usize = 32, range(1, 1000);
    }
}
