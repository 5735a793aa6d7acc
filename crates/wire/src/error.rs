//! Severities and error codes.

/// Severity of an `ErrorResponse`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// The statement failed.
    Error,
    /// The connection ends.
    Fatal,
}

impl Severity {
    /// Returns the name in the protocol.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Severity::Error => "ERROR",
            Severity::Fatal => "FATAL",
        }
    }
}

/// A five-character error code (PostgreSQL documentation, appendix A).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sqlstate(pub [u8; 5]);

macro_rules! sqlstates {
    ($($(#[$doc:meta])* $name:ident = $code:literal;)*) => {
        impl Sqlstate {
            $($(#[$doc])* pub const $name: Sqlstate = Sqlstate(*$code);)*
        }
    };
}

sqlstates! {
    /// connection_failure
    CONNECTION_FAILURE = b"08006";
    /// transaction_resolution_unknown
    TRANSACTION_RESOLUTION_UNKNOWN = b"08007";
    /// protocol_violation
    PROTOCOL_VIOLATION = b"08P01";
    /// feature_not_supported
    FEATURE_NOT_SUPPORTED = b"0A000";
    /// invalid_parameter_value
    INVALID_PARAMETER_VALUE = b"22023";
    /// in_failed_sql_transaction
    IN_FAILED_TRANSACTION = b"25P02";
    /// read_only_sql_transaction
    READ_ONLY_TRANSACTION = b"25006";
    /// idle_in_transaction_session_timeout
    IDLE_IN_TRANSACTION_TIMEOUT = b"25P03";
    /// transaction_timeout
    TRANSACTION_TIMEOUT = b"25P04";
    /// invalid_sql_statement_name
    INVALID_STATEMENT_NAME = b"26000";
    /// invalid_cursor_name
    INVALID_CURSOR_NAME = b"34000";
    /// object_not_in_prerequisite_state
    OBJECT_NOT_IN_PREREQUISITE_STATE = b"55000";
    /// invalid_authorization_specification
    INVALID_AUTHORIZATION = b"28000";
    /// invalid_password
    INVALID_PASSWORD = b"28P01";
    /// invalid_catalog_name
    INVALID_CATALOG_NAME = b"3D000";
    /// serialization_failure
    SERIALIZATION_FAILURE = b"40001";
    /// statement_completion_unknown
    COMPLETION_UNKNOWN = b"40003";
    /// insufficient_privilege
    INSUFFICIENT_PRIVILEGE = b"42501";
    /// syntax_error
    SYNTAX_ERROR = b"42601";
    /// duplicate_prepared_statement
    DUPLICATE_STATEMENT = b"42P05";
    /// too_many_connections
    TOO_MANY_CONNECTIONS = b"53300";
    /// configuration_limit_exceeded
    CONFIGURATION_LIMIT_EXCEEDED = b"53400";
    /// program_limit_exceeded
    PROGRAM_LIMIT_EXCEEDED = b"54000";
    /// object_not_in_prerequisite_state
    NOT_IN_PREREQUISITE_STATE = b"55000";
    /// query_canceled
    QUERY_CANCELED = b"57014";
    /// admin_shutdown
    ADMIN_SHUTDOWN = b"57P01";
    /// crash_shutdown
    CRASH_SHUTDOWN = b"57P02";
    /// cannot_connect_now
    CANNOT_CONNECT_NOW = b"57P03";
    /// database_dropped
    DATABASE_DROPPED = b"57P04";
    /// idle_session_timeout
    IDLE_SESSION_TIMEOUT = b"57P05";
    /// duplicate_object
    DUPLICATE_OBJECT = b"42710";
    /// undefined_object
    UNDEFINED_OBJECT = b"42704";
    /// object_in_use
    OBJECT_IN_USE = b"55006";
    /// disk_full
    DISK_FULL = b"53100";
    /// undefined_file
    UNDEFINED_FILE = b"58P01";
    /// internal_error
    INTERNAL_ERROR = b"XX000";
}

impl std::fmt::Display for Sqlstate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(std::str::from_utf8(&self.0).unwrap_or("?????"))
    }
}
