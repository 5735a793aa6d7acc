//! Changes by a text of its session's run-time parameters, and of the channels that it listens on, statement by statement, as far as names and values
//! tell. Any other change is reported as a doubt, never guessed.

use pg_query::protobuf::{
    DiscardMode, FuncCall, ParseResult, SelectStmt, SetOperation, TransactionStmt, TransactionStmtKind,
    VariableSetKind, VariableSetStmt, a_const::Val,
};
use pg_query::{Node, NodeEnum};

use crate::class::{Class, Flags, Pins};
use crate::functions::Functions;
use crate::parameter::{changes_reading, is_utf8};
use crate::statement;
use crate::tree::name;

/// A change of a run-time parameter, or of the session's channels; or a statement that determines how long a change lasts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Sets the parameter, in lower case, to this value.
    Set(String, Value),
    /// Sets the parameter until the end of the transaction; with `None`, to the session's initial value. Only for parameters that may change how a
    /// text is read (see [`changes_reading`]).
    Local(String, Option<Value>),
    /// Sets an unknown parameter, or a parameter to an unknown value, until the end of the transaction.
    LocalUnknown,
    /// Resets the parameter to the session's initial value.
    Reset(String),
    /// Resets all parameters except `role`.
    ResetAll,
    /// Resets all parameters, and ends listening on all channels.
    DiscardAll,
    /// Starts listening on this channel.
    Listen(String),
    /// Stops listening on this channel.
    Unlisten(String),
    /// Stops listening on all channels.
    UnlistenAll,
    /// Sets a savepoint: later changes may be undone separately.
    Savepoint(String),
    /// Releases the last savepoint of this name, and those after it; later changes remain.
    Release(String),
    /// Undoes changes after the last savepoint of this name.
    RollbackTo(String),
    /// Ends the transaction; with `AND CHAIN` another one begins at once.
    End {
        /// True if the statement commits; a failed transaction is rolled back nevertheless.
        commits: bool,
    },
}

impl Change {
    /// True for a change of the session's channels, including [`Change::DiscardAll`].
    #[must_use]
    pub fn is_about_channels(&self) -> bool {
        matches!(self, Change::Listen(_) | Change::Unlisten(_) | Change::UnlistenAll | Change::DiscardAll)
    }

    /// True for a change of a parameter that outlasts its transaction, if that commits.
    #[must_use]
    pub fn is_about_parameters(&self) -> bool {
        matches!(self, Change::Set(..) | Change::Reset(_) | Change::ResetAll | Change::DiscardAll)
    }

    /// True if texts may be read differently from here on.
    #[must_use]
    pub fn is_about_reading(&self) -> bool {
        match self {
            Change::Set(name, _) | Change::Reset(name) | Change::Local(name, _) => changes_reading(name),
            Change::ResetAll | Change::DiscardAll | Change::LocalUnknown => true,
            _ => false,
        }
    }
}

/// The value in a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A text in the form of `set_config`'s argument, so a list is one text.
    Text(String),
    /// The value bound to the parameter with this number, counted from 0.
    Bound(usize),
}

/// The changes by a text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Changes {
    /// Changes of each statement, in order: they take effect when the statement has completed.
    pub statements: Vec<Vec<Change>>,
    /// True if the text may make other changes.
    pub doubt: bool,
}

/// PostgreSQL's own parameters that are lists of names: SET quotes their values.
const QUOTED: [&str; 4] = ["local_preload_libraries", "search_path", "session_preload_libraries", "temp_tablespaces"];

pub(crate) fn changes(tree: &ParseResult, functions: &Functions) -> Changes {
    let mut all = Changes::default();
    for raw in &tree.stmts {
        let Some(node) = raw.stmt.as_ref().and_then(|node| node.node.as_ref()) else { continue };
        let changes = match node {
            NodeEnum::VariableSetStmt(set) => of_set(set),
            NodeEnum::DiscardStmt(discard) if discard.target() == DiscardMode::DiscardAll => {
                Some(vec![Change::DiscardAll])
            }
            NodeEnum::ListenStmt(listen) => Some(vec![Change::Listen(listen.conditionname.clone())]),
            NodeEnum::UnlistenStmt(unlisten) if unlisten.conditionname.is_empty() => Some(vec![Change::UnlistenAll]),
            NodeEnum::UnlistenStmt(unlisten) => Some(vec![Change::Unlisten(unlisten.conditionname.clone())]),
            NodeEnum::TransactionStmt(statement) => Some(of_transaction(statement).into_iter().collect()),
            NodeEnum::SelectStmt(select) => of_select(select).or_else(|| of_other(node, functions)),
            _ => of_other(node, functions),
        };
        all.doubt |= changes.is_none();
        all.statements.push(changes.unwrap_or_default());
    }
    all
}

fn of_transaction(statement: &TransactionStmt) -> Option<Change> {
    let name = statement.savepoint_name.clone();
    match statement.kind() {
        TransactionStmtKind::TransStmtSavepoint => Some(Change::Savepoint(name)),
        TransactionStmtKind::TransStmtRelease => Some(Change::Release(name)),
        TransactionStmtKind::TransStmtRollbackTo => Some(Change::RollbackTo(name)),
        TransactionStmtKind::TransStmtCommit | TransactionStmtKind::TransStmtPrepare => {
            Some(Change::End { commits: true })
        }
        TransactionStmtKind::TransStmtRollback => Some(Change::End { commits: false }),
        _ => None,
    }
}

/// Returns the changes of a statement that should not affect parameters; `None` if it may.
fn of_other(node: &NodeEnum, functions: &Functions) -> Option<Vec<Change>> {
    let class: Class = statement::classify_one(node, functions);
    if class.pins.0 & Pins::PARAMETERS.0 != 0 {
        return None;
    }
    Some(if class.flags.has(Flags::LOCAL) { vec![Change::LocalUnknown] } else { Vec::new() })
}

fn of_set(set: &VariableSetStmt) -> Option<Vec<Change>> {
    let name = set.name.to_ascii_lowercase();
    match set.kind() {
        VariableSetKind::VarResetAll => Some(vec![Change::ResetAll]),
        VariableSetKind::VarSetMulti if name != "session characteristics" => Some(Vec::new()),
        _ if set.is_local => Some(of_set_local(set, name)),
        VariableSetKind::VarReset | VariableSetKind::VarSetDefault => match name.as_str() {
            // Returns to the login user's own role (`SetSessionAuthorization`). A session that has been another user keeps its connection.
            "session_authorization" => Some(vec![Change::Reset("role".into())]),
            name if is_of_transaction(name) => Some(Vec::new()),
            _ => Some(vec![Change::Reset(name)]),
        },
        VariableSetKind::VarSetMulti => set.args.iter().map(characteristic).collect(),
        VariableSetKind::VarSetValue => {
            let value = value(set, &name)?;
            one(name, Value::Text(value))
        }
        _ => None,
    }
}

/// Returns the value of SET in the form of `set_config`'s argument; `None` if it is unknown.
fn value(set: &VariableSetStmt, name: &str) -> Option<String> {
    let parts: Option<Vec<String>> = set.args.iter().map(constant).collect();
    let parts = parts.filter(|parts| !parts.is_empty())?;
    Some(if QUOTED.contains(&name) {
        parts.iter().map(|part| quoted(part)).collect::<Vec<_>>().join(", ")
    } else {
        parts.join(", ")
    })
}

fn of_set_local(set: &VariableSetStmt, name: String) -> Vec<Change> {
    if !changes_reading(&name) {
        return Vec::new();
    }
    vec![match set.kind() {
        // Changes the user.
        _ if name == "session_authorization" => Change::LocalUnknown,
        VariableSetKind::VarSetDefault => Change::Local(name, None),
        VariableSetKind::VarSetValue => match value(set, &name) {
            Some(value) => Change::Local(name, Some(Value::Text(value))),
            None => Change::LocalUnknown,
        },
        _ => Change::LocalUnknown,
    }]
}

/// Returns the changes of setting one parameter; `None` for a doubt.
fn one(name: String, value: Value) -> Option<Vec<Change>> {
    match name.as_str() {
        // Changes the user; and a parameter that can only be set before a session's first temporary table.
        "session_authorization" | "temp_buffers" => None,
        "seed" => Some(Vec::new()),
        name if is_of_transaction(name) => Some(Vec::new()),
        // Texts are read as UTF-8 here.
        "client_encoding" => match &value {
            Value::Text(text) if is_utf8(text) => Some(vec![Change::Set(name, value)]),
            _ => None,
        },
        // A standby rejects serializable transactions.
        "default_transaction_isolation" => match &value {
            Value::Text(text) if !text.eq_ignore_ascii_case("serializable") => Some(vec![Change::Set(name, value)]),
            _ => None,
        },
        _ => Some(vec![Change::Set(name, value)]),
    }
}

/// True for a parameter of a single transaction, however it is set.
fn is_of_transaction(name: &str) -> bool {
    matches!(name, "transaction_isolation" | "transaction_read_only" | "transaction_deferrable")
}

/// Returns the change by an option of `SET SESSION CHARACTERISTICS AS TRANSACTION …`.
fn characteristic(option: &Node) -> Option<Change> {
    let Some(NodeEnum::DefElem(option)) = &option.node else { return None };
    let value = constant(option.arg.as_deref()?)?;
    let value = match option.defname.as_str() {
        "transaction_isolation" => value,
        "transaction_read_only" | "transaction_deferrable" => if value == "0" { "off" } else { "on" }.to_owned(),
        _ => return None,
    };
    one(format!("default_{}", option.defname), Value::Text(value))?.pop()
}

/// Converts a value of SET to text, like PostgreSQL.
fn constant(node: &Node) -> Option<String> {
    let Some(NodeEnum::AConst(constant)) = &node.node else { return None };
    match constant.val.as_ref()? {
        Val::Sval(text) => Some(text.sval.clone()),
        Val::Ival(number) => Some(number.ival.to_string()),
        Val::Fval(number) => Some(number.fval.clone()),
        _ => None,
    }
}

fn quoted(part: &str) -> String {
    let plain = part.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    if plain { part.to_owned() } else { format!("\"{}\"", part.replace('"', "\"\"")) }
}

/// Returns the changes by `SELECT set_config(…), …` in which every call is certain to happen exactly once.
fn of_select(select: &SelectStmt) -> Option<Vec<Change>> {
    let conditional = select.with_clause.is_some()
        || select.where_clause.is_some()
        || select.having_clause.is_some()
        || select.limit_count.is_some()
        || select.limit_offset.is_some()
        || select.into_clause.is_some()
        || !select.distinct_clause.is_empty()
        || !select.from_clause.is_empty()
        || !select.group_clause.is_empty()
        || !select.window_clause.is_empty()
        || !select.values_lists.is_empty()
        || !select.sort_clause.is_empty()
        || !select.locking_clause.is_empty()
        || !matches!(select.op(), SetOperation::SetopNone | SetOperation::Undefined);
    if conditional || select.target_list.is_empty() {
        return None;
    }
    let mut changes = Vec::new();
    for target in &select.target_list {
        let Some(NodeEnum::ResTarget(target)) = &target.node else { return None };
        match target.val.as_ref()?.node.as_ref()? {
            NodeEnum::AConst(_) => {}
            NodeEnum::FuncCall(call) => match name(&call.funcname)? {
                ("" | "pg_catalog", "set_config") => changes.extend(of_set_config(call)?),
                ("" | "pg_catalog", "current_setting") if call.args.iter().all(|arg| constant(arg).is_some()) => {}
                _ => return None,
            },
            _ => return None,
        }
    }
    Some(changes)
}

fn of_set_config(call: &FuncCall) -> Option<Vec<Change>> {
    let [parameter, value, is_local] = call.args.as_slice() else { return None };
    if call.agg_filter.is_some() || call.over.is_some() || call.func_variadic || call.agg_distinct {
        return None;
    }
    let parameter = constant(parameter)?.to_ascii_lowercase();
    let value = match &value.node {
        Some(NodeEnum::ParamRef(bound)) => Value::Bound(usize::try_from(bound.number).ok()?.checked_sub(1)?),
        _ => Value::Text(constant(value)?),
    };
    match boolean(is_local)? {
        true if !changes_reading(&parameter) => Some(Vec::new()),
        true => Some(vec![Change::Local(parameter, Some(value))]),
        false => one(parameter, value),
    }
}

/// Parses TRUE and FALSE, with or without the cast that the parser may add.
fn boolean(node: &Node) -> Option<bool> {
    match &node.node {
        Some(NodeEnum::AConst(constant)) => match &constant.val {
            Some(Val::Boolval(boolean)) => Some(boolean.boolval),
            _ => None,
        },
        Some(NodeEnum::TypeCast(cast)) => {
            let type_name = cast.type_name.as_ref()?;
            (name(&type_name.names) == Some(("pg_catalog", "bool"))).then_some(())?;
            boolean(cast.arg.as_deref()?)
        }
        _ => None,
    }
}
