//! Class of a text: small, `Copy`, and the same for every text of a shape.

/// Access of a text, which decides if a replica may run it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// The text only reads, keeps nothing in the session, and has the same result on any up-to-date node.
    Read,
    /// Any other text, and every text in doubt.
    Write,
}

/// Transaction control, if the text is exactly one such statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Control {
    /// No transaction control, or several statements (then see [`Flags::TRANSACTION`]).
    None,
    /// `BEGIN` / `START TRANSACTION`.
    Begin {
        /// True if declared READ ONLY, with an isolation level that a hot standby supports (not SERIALIZABLE).
        read_only: bool,
    },
    /// `COMMIT` / `END`, without AND CHAIN.
    Commit,
    /// `ROLLBACK` / `ABORT`, without AND CHAIN.
    Rollback,
}

/// Session state that a statement leaves on the server, as a set of bits: while any is set, the client must keep its server connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Pins(pub u16);

impl Pins {
    /// No pins.
    pub const NONE: Pins = Pins(0);
    /// `SET` (not LOCAL); `set_config(…, false)`, or with a third argument that is not a constant true.
    pub const SET: Pins = Pins(1);
    /// `LISTEN`.
    pub const LISTEN: Pins = Pins(1 << 1);
    /// A cursor `WITH HOLD`.
    pub const CURSOR: Pins = Pins(1 << 2);
    /// Session-level advisory locks.
    pub const ADVISORY_LOCK: Pins = Pins(1 << 3);
    /// SQL `PREPARE`.
    pub const PREPARE: Pins = Pins(1 << 4);
    /// Temporary tables, views, sequences.
    pub const TEMP: Pins = Pins(1 << 5);
    /// `LOAD`, and extensions' session state (`dblink_connect`), which `DISCARD ALL` does not clear.
    pub const LOAD: Pins = Pins(1 << 6);
    /// `currval`, `lastval`, `setseed`: state known only to this session. `nextval` and `setval` do *not* pin: an INSERT calls them invisibly through
    /// a column default, frameworks call them constantly, and few ever call `currval`. For a client's first `currval` outside a transaction the pin
    /// may be too late; it makes later calls correct.
    pub const SEQUENCE: Pins = Pins(1 << 7);
    /// `SET ROLE`, `SET SESSION AUTHORIZATION`, and `set_config` that may be one of them: like `SET`, but `RESET ALL` does not undo it.
    pub const ROLE: Pins = Pins(1 << 8);
    /// Session parameters: they can be tracked if names and values are known.
    pub const PARAMETERS: Pins = Pins(Pins::SET.0 | Pins::ROLE.0);
    /// An unknown function, a `DO` or a `CALL`, if the configuration pins their callers; always for a base backup and a replication origin.
    pub const FUNCTION: Pins = Pins(1 << 9);
    /// Pins that `DISCARD ALL` clears.
    pub const ALL: Pins = Pins(0x3ff & !Pins::LOAD.0);

    /// Each single pin with its name, for metrics and messages.
    pub const NAMES: [(Pins, &'static str); 10] = [
        (Pins::SET, "set"),
        (Pins::LISTEN, "listen"),
        (Pins::CURSOR, "cursor_with_hold"),
        (Pins::ADVISORY_LOCK, "advisory_lock"),
        (Pins::PREPARE, "prepare"),
        (Pins::TEMP, "temp_table"),
        (Pins::LOAD, "load"),
        (Pins::SEQUENCE, "sequence"),
        (Pins::ROLE, "role"),
        (Pins::FUNCTION, "function"),
    ];

    /// Returns the union of both.
    #[must_use]
    pub fn with(self, other: Pins) -> Pins {
        Pins(self.0 | other.0)
    }

    /// Returns these pins without `other`.
    #[must_use]
    pub fn without(self, other: Pins) -> Pins {
        Pins(self.0 & !other.0)
    }

    /// True if none is set.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// Further properties of a text, as a set of bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Flags(pub u32);

impl Flags {
    /// The text has more than one statement.
    pub const MULTI: Flags = Flags(1);
    /// A statement in the text is transaction control, or may commit (CALL, DO).
    pub const TRANSACTION: Flags = Flags(1 << 1);
    /// The text resets parameters of the session to their defaults (`RESET ALL`, `DISCARD ALL`, `RESET x`).
    pub const RESETS_PARAMETERS: Flags = Flags(1 << 2);
    /// The text drops prepared statements in the server session (`DISCARD ALL` and `DEALLOCATE` do, `DISCARD PLANS` does not).
    pub const DROPS_STATEMENTS: Flags = Flags(1 << 3);
    /// The text has no statement (empty, or only comments and semicolons).
    pub const EMPTY: Flags = Flags(1 << 4);
    /// The text reads, but is not one plain query over PostgreSQL's own functions: COPY, EXPLAIN, SHOW, or a function known only to the operator. It
    /// should have a server connection of its own.
    pub const APART: Flags = Flags(1 << 5);
    /// The text has SAVEPOINT, RELEASE or ROLLBACK TO: earlier changes may still be undone in part.
    pub const SAVEPOINT: Flags = Flags(1 << 6);
    /// The text is one INSERT, UPDATE, DELETE or MERGE that returns no rows: its result has no columns, even if its tables change.
    pub const ROWLESS: Flags = Flags(1 << 7);
    /// A statement in the text may change result columns of other statements: CREATE, ALTER, DROP and the like, CALL, DO.
    pub const SCHEMA: Flags = Flags(1 << 8);
    /// A statement in the text declares such a change: those of [`Flags::SCHEMA`] except CALL, DO and the creation of a temporary table.
    pub const DDL: Flags = Flags(1 << 9);
    /// The text has only statements about the session itself, which change nothing in the database: SET, RESET, SHOW, LISTEN, UNLISTEN, DEALLOCATE.
    pub const SESSION: Flags = Flags(1 << 10);
    /// A statement in the text changes the channels of the session: LISTEN, UNLISTEN, DISCARD ALL.
    pub const LISTENS: Flags = Flags(1 << 11);
    /// A statement in the text sets a parameter until the end of its transaction, and that parameter may change how texts are read: `SET LOCAL
    /// search_path`, `set_config(…, true)`.
    pub const LOCAL: Flags = Flags(1 << 12);
    /// A statement in the text takes an advisory lock, of either kind. On a replica it would exclude no session of the primary.
    pub const LOCKS: Flags = Flags(1 << 13);
    /// A statement in the text runs unknown code: a function that is neither PostgreSQL's nor the operator's, `DO`, `CALL`. It may leave any state in
    /// the session.
    pub const UNKNOWN: Flags = Flags(1 << 14);
    /// A statement in the text is EXECUTE, FETCH or MOVE: its result depends on a statement or cursor that the session created by SQL.
    pub const OF_SESSION: Flags = Flags(1 << 15);
    /// A statement in the text creates an object under a name without a schema: in the first schema of `search_path`. If that is `pg_temp`, the
    /// object is temporary, and the text does not show it.
    pub const MAKES: Flags = Flags(1 << 16);
    /// A statement in the text exports or imports a snapshot: both sessions must be on one server.
    pub const SNAPSHOT: Flags = Flags(1 << 17);
    /// The text has only SHOW in it, of parameters that are not the proxy's own: it takes no snapshot, and changes nothing.
    pub const SHOWS: Flags = Flags(1 << 18);
    /// A statement in the text names a prepared statement: EXECUTE (also below EXPLAIN and CREATE TABLE AS), PREPARE, DEALLOCATE. The names are in
    /// [`Classifier::prepared_names`](crate::Classifier::prepared_names).
    pub const NAMES: Flags = Flags(1 << 19);
    /// A statement in the text is EXECUTE, by itself or below EXPLAIN or CREATE TABLE AS.
    pub const EXECUTES: Flags = Flags(1 << 20);
    /// The text is one EXECUTE, by itself or below EXPLAIN, whose arguments only read: it reads if the prepared statement does.
    pub const EXECUTES_ONE: Flags = Flags(1 << 21);
    /// The text waits until a standby has received or replayed a position (`WAIT FOR LSN`): it is for a replica, however far that one is behind.
    pub const STANDBY: Flags = Flags(1 << 22);
    /// A statement in the text reads the time of its transaction's begin: `now()`, `CURRENT_DATE`, `age(x)`.
    pub const BEGIN_TIME: Flags = Flags(1 << 23);
    /// The text is a BEGIN above READ COMMITTED: all statements of the transaction share one snapshot.
    pub const ONE_SNAPSHOT: Flags = Flags(1 << 24);

    /// True if all bits of `other` are set.
    #[must_use]
    pub fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the bits that are not in `other`.
    #[must_use]
    pub fn without(self, other: Flags) -> Flags {
        Flags(self.0 & !other.0)
    }

    /// Returns the union of both.
    #[must_use]
    pub fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

/// Routing hint of the text, in a comment before its first token: `/* kingpost.route=primary */`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Hint {
    /// `primary`.
    Primary,
    /// `replica`.
    Replica,
    /// `auto`: routing by the statement's class, regardless of the session's or address's setting.
    Auto,
}

/// A statement about the proxy's own state, which the proxy must or may answer itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Local {
    /// `DEALLOCATE name`.
    Deallocate(String),
    /// `DEALLOCATE ALL`.
    DeallocateAll,
    /// `SET [SESSION] kingpost.route = 'primary' | 'replica' | 'auto'`; `None` for `DEFAULT` and `RESET kingpost.route`.
    Route(Option<Hint>),
    /// `SET kingpost.consistency = 'eventual' | 'session' | 'strong'`; `None` as for the route. The value is lower-cased, not checked.
    Consistency(Option<String>),
    /// `SET kingpost.token = '…'`, the state that the session's reads must see; `None` as for the route, which changes nothing. Lower-cased, not
    /// checked.
    Token(Option<String>),
    /// `SET kingpost.transaction_reads = 'primary' | 'replica'`; `None` as for the route. The value is lower-cased, not checked.
    TransactionReads(Option<String>),
    /// `SHOW kingpost.route`, `SHOW kingpost.consistency`: the name after the dot, lower-cased.
    Show(String),
    /// `SET kingpost.…` with an unknown name or value: the error message.
    Invalid(String),
}

/// Class of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Class {
    /// Access, which decides if a replica may run the text.
    pub access: Access,
    /// Transaction control.
    pub control: Control,
    /// Session state that the text leaves. Valid as soon as the text was sent, whether or not it succeeds.
    pub pins: Pins,
    /// Session state that the text clears, including that of its own earlier statements (`pins`). Valid only once the whole text succeeded outside of
    /// a transaction, or its transaction committed: a rollback restores parameters.
    pub unpins: Pins,
    /// Further properties.
    pub flags: Flags,
    /// Routing hint.
    pub hint: Option<Hint>,
    /// True if the text is exactly one statement that the proxy may answer itself: see `local_command`.
    pub local: bool,
}

impl Class {
    /// Class of an unknown text: too long, unparsable, or in another encoding.
    pub const UNKNOWN: Class = Class {
        access: Access::Write,
        control: Control::None,
        pins: Pins::NONE,
        unpins: Pins::NONE,
        flags: Flags(0),
        hint: None,
        local: false,
    };
}
