//! The answer: small, `Copy`, and the same for every text of a shape.

/// Whether a replica may run it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// Only reads, keeps nothing in the session, and gives the same answer on any up-to-date node.
    Read,
    /// Everything else, and everything in doubt.
    Write,
}

/// Transaction control, if the text is exactly one such statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Control {
    /// No transaction control in the text, or several statements (then see [`Flags::TRANSACTION`]).
    None,
    /// `BEGIN` / `START TRANSACTION`.
    Begin {
        /// Declared READ ONLY, and an isolation level that a hot standby has (not SERIALIZABLE).
        read_only: bool,
    },
    /// `COMMIT` / `END`, without AND CHAIN.
    Commit,
    /// `ROLLBACK` / `ABORT`, without AND CHAIN.
    Rollback,
}

/// What a statement leaves behind in the server session, as a set of bits: while any is set, the client must keep its
/// server connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Pins(pub u16);

impl Pins {
    /// Nothing.
    pub const NONE: Pins = Pins(0);
    /// `SET` (not LOCAL), `set_config(…, false)` or with an argument that is not a constant true.
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
    /// `LOAD`, and what an extension keeps in the session (`dblink_connect`): `DISCARD ALL` does not clear it.
    pub const LOAD: Pins = Pins(1 << 6);
    /// `currval`, `lastval`, `setseed`: what only this session knows. `nextval` and `setval` do *not* pin: an INSERT
    /// calls them unseen by a column default, frameworks call them constantly, and few ever ask `currval`. For the
    /// first `currval` of a client outside a transaction it may be too late; the pin keeps those after it right.
    pub const SEQUENCE: Pins = Pins(1 << 7);
    /// `SET ROLE`, `SET SESSION AUTHORIZATION`, and `set_config` that may be one of them: like `SET`, but `RESET ALL`
    /// does not undo it.
    pub const ROLE: Pins = Pins(1 << 8);
    /// What is parameters of the session: it can be followed where names and values are known.
    pub const PARAMETERS: Pins = Pins(Pins::SET.0 | Pins::ROLE.0);
    /// A function, a `DO` or a `CALL` of which nothing is known, where the configuration says that its caller stays; a base backup and
    /// a replication origin, always.
    pub const FUNCTION: Pins = Pins(1 << 9);
    /// Everything `DISCARD ALL` clears.
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

    /// Both.
    #[must_use]
    pub fn with(self, other: Pins) -> Pins {
        Pins(self.0 | other.0)
    }

    /// These without the others.
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

/// More about the text, as a set of bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Flags(pub u32);

impl Flags {
    /// More than one statement in the text.
    pub const MULTI: Flags = Flags(1);
    /// Some statement in the text is transaction control, or may commit inside (CALL, DO).
    pub const TRANSACTION: Flags = Flags(1 << 1);
    /// Changes which parameters the session has back to its defaults (`RESET ALL`, `DISCARD ALL`, `RESET x`).
    pub const RESETS_PARAMETERS: Flags = Flags(1 << 2);
    /// Drops prepared statements in the server session (`DISCARD ALL`, `DISCARD PLANS` does not, `DEALLOCATE` does).
    pub const DROPS_STATEMENTS: Flags = Flags(1 << 3);
    /// No statement at all (empty text, or only comments and semicolons).
    pub const EMPTY: Flags = Flags(1 << 4);
    /// A read, but not one plain query over PostgreSQL's own functions: COPY, EXPLAIN, SHOW, or a function that only
    /// the operator knows. It should have a server connection to itself.
    pub const APART: Flags = Flags(1 << 5);
    /// Has SAVEPOINT, RELEASE or ROLLBACK TO in it: what came before may yet be undone in part.
    pub const SAVEPOINT: Flags = Flags(1 << 6);
    /// One INSERT, UPDATE, DELETE or MERGE that returns no rows: whatever becomes of its tables, its answer has no columns.
    pub const ROWLESS: Flags = Flags(1 << 7);
    /// Some statement in the text may change what others' columns are: CREATE, ALTER, DROP and the like, CALL, DO.
    pub const SCHEMA: Flags = Flags(1 << 8);
    /// Some statement in the text says that it does: of [`Flags::SCHEMA`] all but CALL, DO and what makes a temporary table.
    pub const DDL: Flags = Flags(1 << 9);
    /// The text has only statements about the session itself, which leave nothing in the database: SET, RESET, SHOW, LISTEN, UNLISTEN,
    /// DEALLOCATE.
    pub const SESSION: Flags = Flags(1 << 10);
    /// Some statement in the text changes which channels the session listens on: LISTEN, UNLISTEN, DISCARD ALL.
    pub const LISTENS: Flags = Flags(1 << 11);
    /// Some statement in the text gives a parameter another value until its transaction ends, and that parameter may change how texts
    /// are read: `SET LOCAL search_path`, `set_config(…, true)`.
    pub const LOCAL: Flags = Flags(1 << 12);
    /// Some statement in the text takes an advisory lock, of either kind. On a replica it would exclude nobody on the primary.
    pub const LOCKS: Flags = Flags(1 << 13);
    /// Some statement in the text runs what nothing is known of: a function that is neither PostgreSQL's nor the operator's, `DO`,
    /// `CALL`. It may leave anything in the session.
    pub const UNKNOWN: Flags = Flags(1 << 14);
    /// Some statement in the text is EXECUTE, FETCH or MOVE: what it returns depends on a statement or a cursor that the session has by SQL.
    pub const OF_SESSION: Flags = Flags(1 << 15);
    /// Some statement in the text makes something under a name without a schema: it goes where `search_path` begins. Where that is
    /// `pg_temp` it is temporary, and no word of the text says so.
    pub const MAKES: Flags = Flags(1 << 16);
    /// Some statement in the text exports a snapshot or takes one: who has it and who wants it have to be on one server.
    pub const SNAPSHOT: Flags = Flags(1 << 17);

    /// True if all bits of `other` are set.
    #[must_use]
    pub fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both.
    #[must_use]
    pub fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

/// Where the text itself asks to go, by a comment before its first token: `/* kingpost.route=primary */`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Hint {
    /// `primary`.
    Primary,
    /// `replica`.
    Replica,
    /// `auto`: by what the statement is, whatever the session's or address's setting.
    Auto,
}

/// What the proxy must or may answer by itself, because it is about the proxy's own state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Local {
    /// `DEALLOCATE name`.
    Deallocate(String),
    /// `DEALLOCATE ALL`.
    DeallocateAll,
    /// `SET [SESSION] kingpost.route = 'primary' | 'replica' | 'auto'` (`DEFAULT` and `RESET kingpost.route`: None).
    Route(Option<Hint>),
    /// `SET kingpost.consistency = 'eventual' | 'session' | 'strong'`; None as above. The value is lower-cased, not checked.
    Consistency(Option<String>),
    /// `SET kingpost.token = '…'`: what the session's reads must see; None: as above, which changes nothing. Lower-cased, not checked.
    Token(Option<String>),
    /// `SHOW kingpost.route`, `SHOW kingpost.consistency`: the name after the dot, lower-cased.
    Show(String),
    /// `SET kingpost.…` with a name or a value that is not known: what to say.
    Invalid(String),
}

/// What a text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Class {
    /// May a replica run it?
    pub access: Access,
    /// Transaction control.
    pub control: Control,
    /// What it leaves in the session. Holds as soon as the text was sent, whether or not it succeeds.
    pub pins: Pins,
    /// What it clears from the session, what its own earlier statements have left (`pins`) included. Holds only once the whole text succeeded
    /// outside of a transaction, or its transaction committed: a rollback brings parameters back.
    pub unpins: Pins,
    /// More.
    pub flags: Flags,
    /// Where it asks to go.
    pub hint: Option<Hint>,
    /// It is exactly one statement that the proxy may answer itself: ask `local_command` with the text.
    pub local: bool,
}

impl Class {
    /// A text nothing is known about: too long, not to be parsed, in an odd encoding.
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
