//! What a text does to the run-time parameters of its session, and to the channels that it listens on, statement by statement, so far
//! as that can be said by names and values. What can't be is a doubt, not a guess.

use pg_query::protobuf::{
    DiscardMode, FuncCall, ParseResult, SelectStmt, SetOperation, TransactionStmt, TransactionStmtKind,
    VariableSetKind, VariableSetStmt, a_const::Val,
};
use pg_query::{Node, NodeEnum};

use crate::class::{Class, Pins};
use crate::functions::Functions;
use crate::statement;
use crate::tree::name;

/// A lasting change of a run-time parameter, for which `SET LOCAL` is none; of the channels that the session listens on; or what it takes
/// to know which of these a rollback undoes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The parameter, in lower case, gets this value.
    Set(String, Value),
    /// Back to what the session began with.
    Reset(String),
    /// All but `role` go back.
    ResetAll,
    /// All go back, and the session listens on no channel.
    DiscardAll,
    /// The session listens on this channel.
    Listen(String),
    /// It does not.
    Unlisten(String),
    /// It listens on none.
    UnlistenAll,
    /// What comes from here on may be undone by itself.
    Savepoint(String),
    /// The last savepoint of this name, and those after it, are gone; what came after them stays.
    Release(String),
    /// What came after the last savepoint of this name is undone.
    RollbackTo(String),
}

impl Change {
    /// True if it is about channels, or about what of that is undone; [`Change::DiscardAll`] is about both.
    #[must_use]
    pub fn is_about_channels(&self) -> bool {
        !matches!(self, Change::Set(..) | Change::Reset(_) | Change::ResetAll)
    }

    /// True if it is about parameters.
    #[must_use]
    pub fn is_about_parameters(&self) -> bool {
        matches!(self, Change::Set(..) | Change::Reset(_) | Change::ResetAll | Change::DiscardAll)
    }
}

/// What `set_config` is given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// This; as `set_config` takes it, so lists are in one piece.
    Text(String),
    /// What is bound to the parameter with this number, counted from 0.
    Bound(usize),
}

/// What a text changes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Changes {
    /// For each of its statements, in order: it has happened when that has completed.
    pub statements: Vec<Vec<Change>>,
    /// It may change more than that.
    pub doubt: bool,
}

/// Core's parameters that are lists of names: what SET gives them is quoted.
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
            NodeEnum::TransactionStmt(statement) => Some(of_savepoint(statement).into_iter().collect()),
            NodeEnum::SelectStmt(select) => of_select(select).or_else(|| of_other(node, functions)),
            _ => of_other(node, functions),
        };
        all.doubt |= changes.is_none();
        all.statements.push(changes.unwrap_or_default());
    }
    all
}

fn of_savepoint(statement: &TransactionStmt) -> Option<Change> {
    let name = statement.savepoint_name.clone();
    match statement.kind() {
        TransactionStmtKind::TransStmtSavepoint => Some(Change::Savepoint(name)),
        TransactionStmtKind::TransStmtRelease => Some(Change::Release(name)),
        TransactionStmtKind::TransStmtRollbackTo => Some(Change::RollbackTo(name)),
        _ => None,
    }
}

/// A statement that should have nothing to do with parameters; None if it may.
fn of_other(node: &NodeEnum, functions: &Functions) -> Option<Vec<Change>> {
    let class: Class = statement::classify_one(node, functions);
    (class.pins.0 & (Pins::SET.0 | Pins::ROLE.0) == 0).then(Vec::new)
}

fn of_set(set: &VariableSetStmt) -> Option<Vec<Change>> {
    let name = set.name.to_ascii_lowercase();
    match set.kind() {
        VariableSetKind::VarResetAll => Some(vec![Change::ResetAll]),
        _ if set.is_local => Some(Vec::new()),
        VariableSetKind::VarReset | VariableSetKind::VarSetDefault => match name.as_str() {
            "session_authorization" => None,
            name if is_of_transaction(name) => Some(Vec::new()),
            _ => Some(vec![Change::Reset(name)]),
        },
        VariableSetKind::VarSetMulti if name == "session characteristics" => {
            set.args.iter().map(characteristic).collect()
        }
        VariableSetKind::VarSetMulti => Some(Vec::new()),
        VariableSetKind::VarSetValue => {
            let parts: Option<Vec<String>> = set.args.iter().map(constant).collect();
            let parts = parts.filter(|parts| !parts.is_empty())?;
            let value = if QUOTED.contains(&name.as_str()) {
                parts.iter().map(|part| quoted(part)).collect::<Vec<_>>().join(", ")
            } else {
                parts.join(", ")
            };
            one(name, Value::Text(value))
        }
        _ => None,
    }
}

/// One parameter gets a value.
fn one(name: String, value: Value) -> Option<Vec<Change>> {
    match name.as_str() {
        // Another user altogether; and what may only be set before a session's first temporary table.
        "session_authorization" | "temp_buffers" => None,
        "seed" => Some(Vec::new()),
        name if is_of_transaction(name) => Some(Vec::new()),
        // Texts are read as UTF-8 here.
        "client_encoding" => match &value {
            Value::Text(text) if matches!(&*text.to_ascii_lowercase(), "utf8" | "utf-8" | "unicode") => {
                Some(vec![Change::Set(name, value)])
            }
            _ => None,
        },
        // A standby refuses all that is serializable.
        "default_transaction_isolation" => match &value {
            Value::Text(text) if !text.eq_ignore_ascii_case("serializable") => Some(vec![Change::Set(name, value)]),
            _ => None,
        },
        _ => Some(vec![Change::Set(name, value)]),
    }
}

/// Set for one transaction, however it is written.
fn is_of_transaction(name: &str) -> bool {
    matches!(name, "transaction_isolation" | "transaction_read_only" | "transaction_deferrable")
}

/// Of `SET SESSION CHARACTERISTICS AS TRANSACTION …`.
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

/// As PostgreSQL flattens a value of SET.
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

/// `SELECT set_config(…), …` with nothing that could keep it from being called just once.
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
        true => Some(Vec::new()),
        false => one(parameter, value),
    }
}

/// TRUE and FALSE, with or without the cast that the parser may give them.
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
