//! Classification of a whole text by its parse tree.

use pg_query::protobuf::{
    CreateStmt, DiscardMode, ParseResult, RangeVar, TransactionStmt, TransactionStmtKind, VariableSetKind,
    VariableSetStmt,
};
use pg_query::{Node, NodeEnum};

use crate::class::{Access, Class, Control, Flags, Pins};
use crate::functions::Functions;
use crate::parameter::changes_reading;
use crate::tree::{Walk, is_temp_schema, name};

/// `CURSOR_OPT_HOLD` of PostgreSQL's parse nodes.
const CURSOR_HOLD: i32 = 0x20;

/// Classifies a text by its parse tree. The hint is not in the tree.
pub(crate) fn classify(tree: &ParseResult, functions: &Functions) -> Class {
    let statements: Vec<&NodeEnum> = tree.stmts.iter().filter_map(|raw| raw.stmt.as_ref()?.node.as_ref()).collect();
    let mut text =
        Text { functions, read: true, foreign: false, class: Class { access: Access::Write, ..Class::UNKNOWN } };
    match statements.as_slice() {
        [] => text.flag(Flags::EMPTY),
        [one] if is_local(one) => {
            text.read = false;
            if matches!(one, NodeEnum::DeallocateStmt(_)) {
                text.statement(one);
            }
            text.class.local = true;
        }
        [NodeEnum::TransactionStmt(statement)] => {
            text.read = false;
            if has_one_snapshot(&statement.options) {
                text.flag(Flags::ONE_SNAPSHOT);
            }
            match control(statement) {
                Some(control) => text.class.control = control,
                None if is_savepoint(statement) => text.flag(Flags::SAVEPOINT),
                None => text.flag(Flags::TRANSACTION),
            }
        }
        several => {
            if several.len() > 1 {
                text.flag(Flags::MULTI);
            }
            for statement in several {
                text.statement(statement);
            }
        }
    }
    if let [one] = statements.as_slice() {
        if is_rowless(one) {
            text.flag(Flags::ROWLESS);
        }
        if text.class.pins.is_empty() && executes_to_read(one, functions) {
            text.flag(Flags::EXECUTES_ONE);
        }
    }
    if !statements.is_empty() && statements.iter().all(|statement| is_about_session(statement)) {
        text.flag(Flags::SESSION);
    }
    let shows = |statement: &&NodeEnum| matches!(statement, NodeEnum::VariableShowStmt(_)) && !is_local(statement);
    if !statements.is_empty() && statements.iter().all(shows) {
        text.flag(Flags::SHOWS);
    }
    for statement in statements.iter().filter(|statement| is_about_schema(statement)) {
        text.flag(Flags::SCHEMA);
        if !is_hidden_or_private(statement) {
            text.flag(Flags::DDL);
        }
    }
    if text.read {
        text.class.access = Access::Read;
        let plain = matches!(statements.as_slice(), [] | [NodeEnum::SelectStmt(_)]) && !text.foreign;
        if !plain {
            text.flag(Flags::APART);
        }
    }
    text.class
}

fn is_rowless(statement: &NodeEnum) -> bool {
    match statement {
        NodeEnum::InsertStmt(statement) => statement.returning_clause.is_none(),
        NodeEnum::UpdateStmt(statement) => statement.returning_clause.is_none(),
        NodeEnum::DeleteStmt(statement) => statement.returning_clause.is_none(),
        NodeEnum::MergeStmt(statement) => statement.returning_clause.is_none(),
        _ => false,
    }
}

/// True if the statement takes no transaction id. NOTIFY does, and DISCARD and PREPARE may do more than they show.
fn is_about_session(statement: &NodeEnum) -> bool {
    matches!(
        statement,
        NodeEnum::VariableSetStmt(_)
            | NodeEnum::VariableShowStmt(_)
            | NodeEnum::DeallocateStmt(_)
            | NodeEnum::ListenStmt(_)
            | NodeEnum::UnlistenStmt(_)
    )
}

/// True if the statement does not show its changes of the schema, or creates a table that no other session sees.
fn is_hidden_or_private(statement: &NodeEnum) -> bool {
    let temporary = |relation: &Option<RangeVar>| relation.as_ref().is_some_and(|r| r.relpersistence == "t");
    match statement {
        NodeEnum::CallStmt(_) | NodeEnum::DoStmt(_) => true,
        NodeEnum::CreateStmt(create) => temporary(&create.relation),
        NodeEnum::CreateTableAsStmt(create) => create.into.as_ref().is_some_and(|into| temporary(&into.rel)),
        _ => false,
    }
}

/// True for all statements except those known not to change columns.
fn is_about_schema(statement: &NodeEnum) -> bool {
    !matches!(
        statement,
        NodeEnum::SelectStmt(_)
            | NodeEnum::InsertStmt(_)
            | NodeEnum::UpdateStmt(_)
            | NodeEnum::DeleteStmt(_)
            | NodeEnum::MergeStmt(_)
            | NodeEnum::CopyStmt(_)
            | NodeEnum::ExplainStmt(_)
            | NodeEnum::TransactionStmt(_)
            | NodeEnum::VariableSetStmt(_)
            | NodeEnum::VariableShowStmt(_)
            | NodeEnum::ConstraintsSetStmt(_)
            | NodeEnum::DiscardStmt(_)
            | NodeEnum::PrepareStmt(_)
            | NodeEnum::ExecuteStmt(_)
            | NodeEnum::DeallocateStmt(_)
            | NodeEnum::DeclareCursorStmt(_)
            | NodeEnum::FetchStmt(_)
            | NodeEnum::ClosePortalStmt(_)
            | NodeEnum::ListenStmt(_)
            | NodeEnum::UnlistenStmt(_)
            | NodeEnum::NotifyStmt(_)
            | NodeEnum::LockStmt(_)
            | NodeEnum::LoadStmt(_)
            | NodeEnum::VacuumStmt(_)
            | NodeEnum::TruncateStmt(_)
            | NodeEnum::CheckPointStmt(_)
    )
}

/// True for an EXECUTE, by itself or below EXPLAIN, whose arguments only read.
fn executes_to_read(statement: &NodeEnum, functions: &Functions) -> bool {
    let execute = match statement {
        NodeEnum::ExecuteStmt(execute) => execute,
        NodeEnum::ExplainStmt(explain) => match explain.query.as_ref().and_then(|query| query.node.as_ref()) {
            Some(NodeEnum::ExecuteStmt(execute)) => execute,
            _ => return false,
        },
        _ => return false,
    };
    let mut walk = Walk::new(functions);
    walk.nodes(&execute.params);
    walk.read
}

/// Classifies a single statement, independent of the rest of its text.
pub(crate) fn classify_one(statement: &NodeEnum, functions: &Functions) -> Class {
    let mut text = Text { functions, read: true, foreign: false, class: Class::UNKNOWN };
    text.statement(statement);
    text.class
}

/// True for a statement about the proxy's own state.
pub(crate) fn is_local(statement: &NodeEnum) -> bool {
    match statement {
        NodeEnum::DeallocateStmt(_) => true,
        NodeEnum::VariableSetStmt(set) => own_parameter(&set.name).is_some(),
        NodeEnum::VariableShowStmt(show) => own_parameter(&show.name).is_some(),
        _ => false,
    }
}

/// Returns the part after `kingpost.` of a parameter's name, if it is one of the proxy's own.
pub(crate) fn own_parameter(name: &str) -> Option<&str> {
    let (first, rest) = name.split_once('.')?;
    first.eq_ignore_ascii_case("kingpost").then_some(rest)
}

fn control(statement: &TransactionStmt) -> Option<Control> {
    match statement.kind() {
        TransactionStmtKind::TransStmtBegin | TransactionStmtKind::TransStmtStart => {
            Some(Control::Begin { read_only: begins_read_only(&statement.options) })
        }
        TransactionStmtKind::TransStmtCommit if !statement.chain => Some(Control::Commit),
        TransactionStmtKind::TransStmtRollback if !statement.chain => Some(Control::Rollback),
        _ => None,
    }
}

fn is_savepoint(statement: &TransactionStmt) -> bool {
    matches!(
        statement.kind(),
        TransactionStmtKind::TransStmtSavepoint
            | TransactionStmtKind::TransStmtRelease
            | TransactionStmtKind::TransStmtRollbackTo
    )
}

/// True if a transaction with these options is not certainly READ COMMITTED, or at the session's level. (READ UNCOMMITTED is READ COMMITTED.)
fn has_one_snapshot(options: &[Node]) -> bool {
    use pg_query::protobuf::a_const::Val;
    options.iter().any(|option| {
        let Some(NodeEnum::DefElem(option)) = &option.node else { return true };
        let level = match option.arg.as_ref().and_then(|arg| arg.node.as_ref()) {
            Some(NodeEnum::AConst(value)) => value.val.as_ref(),
            _ => None,
        };
        match (option.defname.as_str(), level) {
            ("transaction_isolation", Some(Val::Sval(level))) => {
                !matches!(level.sval.as_str(), "read committed" | "read uncommitted")
            }
            ("transaction_isolation", _) => true,
            _ => false,
        }
    })
}

/// True if the transaction is READ ONLY and not SERIALIZABLE. The last of several access modes or isolation levels wins.
fn begins_read_only(options: &[Node]) -> bool {
    use pg_query::protobuf::a_const::Val;
    let mut read_only = false;
    let mut serializable = false;
    for option in options {
        let Some(NodeEnum::DefElem(option)) = &option.node else { return false };
        let value = match option.arg.as_ref().and_then(|arg| arg.node.as_ref()) {
            Some(NodeEnum::AConst(value)) => value.val.as_ref(),
            _ => None,
        };
        match (option.defname.as_str(), value) {
            ("transaction_read_only", Some(Val::Ival(value))) => read_only = value.ival != 0,
            ("transaction_isolation", Some(Val::Sval(level))) => serializable = level.sval == "serializable",
            ("transaction_deferrable", _) => {}
            _ => return false,
        }
    }
    read_only && !serializable
}

/// Result of the statements of a text so far, in order.
struct Text<'a> {
    functions: &'a Functions,
    read: bool,
    foreign: bool,
    class: Class,
}

impl Text<'_> {
    fn flag(&mut self, flag: Flags) {
        self.class.flags = self.class.flags.with(flag);
    }

    fn pin(&mut self, pins: Pins) {
        self.class.pins = self.class.pins.with(pins);
        self.class.unpins = self.class.unpins.without(pins);
    }

    /// Clears pins by a statement. Pins of an earlier statement of the text remain, because this one may fail without undoing that: `prepare q1 as
    /// select 1; discard all` has prepared, and DISCARD ALL among several statements is an error.
    fn unpin(&mut self, pins: Pins) {
        self.class.unpins = self.class.unpins.with(pins);
    }

    /// Walks a part of the tree, and returns true if it only reads.
    fn walk(&mut self, go: impl FnOnce(&mut Walk<'_>)) -> bool {
        let mut walk = Walk::new(self.functions);
        go(&mut walk);
        self.pin(walk.pins);
        self.flag(walk.flags);
        self.foreign |= walk.foreign;
        walk.read
    }

    fn statement(&mut self, statement: &NodeEnum) {
        if !self.reads(statement) {
            self.read = false;
        }
    }

    fn inner(&mut self, query: Option<&Node>) -> bool {
        query.and_then(|node| node.node.as_ref()).is_some_and(|statement| self.reads(statement))
    }

    /// Records the statement's effect on the session, and returns true if it only reads.
    fn reads(&mut self, statement: &NodeEnum) -> bool {
        match statement {
            NodeEnum::SelectStmt(select) => {
                let reads = self.walk(|walk| walk.select(select));
                if unlocks_all(select) {
                    self.unpin(Pins::ADVISORY_LOCK);
                }
                return reads;
            }
            // The option ANALYZE does not matter: a query that only reads may also be run.
            NodeEnum::ExplainStmt(explain) => {
                let reads = self.inner(explain.query.as_deref());
                let plain = matches!(
                    explain.query.as_ref().and_then(|query| query.node.as_ref()),
                    Some(NodeEnum::SelectStmt(_))
                );
                return reads && plain;
            }
            NodeEnum::CopyStmt(copy) => {
                let mut reads = self.walk(|walk| {
                    if let Some(relation) = &copy.relation {
                        walk.relation(relation);
                    }
                    walk.maybe(copy.where_clause.as_deref());
                });
                if copy.query.is_some() {
                    reads &= self.inner(copy.query.as_deref());
                }
                return reads && !copy.is_from && !copy.is_program && copy.filename.is_empty();
            }
            NodeEnum::InsertStmt(_) | NodeEnum::UpdateStmt(_) | NodeEnum::DeleteStmt(_) | NodeEnum::MergeStmt(_) => {
                let node = statement;
                self.walk(|walk| walk.statement(node));
            }
            NodeEnum::VariableSetStmt(set) => self.set(set),
            NodeEnum::DiscardStmt(discard) => match discard.target() {
                DiscardMode::DiscardAll => {
                    self.unpin(Pins::ALL);
                    self.flag(Flags::RESETS_PARAMETERS);
                    self.flag(Flags::DROPS_STATEMENTS);
                    self.flag(Flags::LISTENS);
                }
                DiscardMode::DiscardTemp => self.unpin(Pins::TEMP),
                _ => {}
            },
            NodeEnum::ListenStmt(_) => {
                self.pin(Pins::LISTEN);
                self.flag(Flags::LISTENS);
            }
            NodeEnum::UnlistenStmt(unlisten) => {
                if unlisten.conditionname.is_empty() {
                    self.unpin(Pins::LISTEN);
                }
                self.flag(Flags::LISTENS);
            }
            NodeEnum::DeclareCursorStmt(declare) => {
                self.inner(declare.query.as_deref());
                if declare.options & CURSOR_HOLD != 0 {
                    self.pin(Pins::CURSOR);
                }
            }
            NodeEnum::ClosePortalStmt(close) if close.portalname.is_empty() => self.unpin(Pins::CURSOR),
            NodeEnum::PrepareStmt(prepare) => {
                // The pins of its execution, because EXECUTE does not show them.
                self.inner(prepare.query.as_deref());
                self.pin(Pins::PREPARE);
                self.flag(Flags::NAMES);
            }
            NodeEnum::FetchStmt(_) => self.flag(Flags::OF_SESSION),
            NodeEnum::ExecuteStmt(execute) => {
                self.flag(Flags::OF_SESSION.with(Flags::NAMES).with(Flags::EXECUTES));
                self.walk(|walk| walk.nodes(&execute.params));
            }
            NodeEnum::DeallocateStmt(deallocate) => {
                self.flag(Flags::DROPS_STATEMENTS);
                if deallocate.isall {
                    self.unpin(Pins::PREPARE);
                } else {
                    self.flag(Flags::NAMES);
                }
            }
            NodeEnum::LoadStmt(_) => self.pin(Pins::LOAD),
            NodeEnum::TransactionStmt(transaction) => {
                self.flag(Flags::TRANSACTION);
                if is_savepoint(transaction) {
                    self.flag(Flags::SAVEPOINT);
                }
            }
            NodeEnum::DoStmt(_) => self.flag(Flags::TRANSACTION.with(Flags::UNKNOWN)),
            NodeEnum::CallStmt(call) => {
                self.flag(Flags::TRANSACTION.with(Flags::UNKNOWN));
                if let Some(call) = &call.funccall {
                    self.walk(|walk| walk.call(call));
                }
            }
            NodeEnum::CreateStmt(create) => self.table(create),
            NodeEnum::CreateForeignTableStmt(create) => {
                if let Some(create) = &create.base_stmt {
                    self.table(create);
                }
            }
            NodeEnum::AlterTableStmt(alter) => {
                self.walk(|walk| walk.definitions(&alter.cmds));
            }
            NodeEnum::AlterDomainStmt(alter) => {
                let definition = alter.def.as_ref().and_then(|def| def.node.as_ref());
                self.walk(|walk| walk.definition(definition));
            }
            NodeEnum::IndexStmt(index) => {
                self.walk(|walk| {
                    walk.definitions(&index.index_params);
                    walk.maybe(index.where_clause.as_deref());
                });
            }
            NodeEnum::CreateSchemaStmt(create) => {
                let elements = create.schema_elts.iter().filter_map(|element| element.node.as_ref());
                elements.for_each(|element| self.statement(element));
            }
            // An extension's script may do anything.
            NodeEnum::CreateExtensionStmt(_) | NodeEnum::AlterExtensionStmt(_) => self.flag(Flags::UNKNOWN),
            NodeEnum::CreateTableAsStmt(create) => {
                self.inner(create.query.as_deref());
                if let Some(into) = &create.into {
                    self.walk(|walk| walk.created(into.rel.as_ref(), into.on_commit));
                }
            }
            NodeEnum::ViewStmt(create) => {
                self.walk(|walk| walk.created(create.view.as_ref(), 0));
            }
            NodeEnum::CreateSeqStmt(create) => {
                self.walk(|walk| walk.created(create.sequence.as_ref(), 0));
            }
            NodeEnum::CompositeTypeStmt(create) => {
                self.walk(|walk| walk.created(create.typevar.as_ref(), 0));
            }
            NodeEnum::CreateFunctionStmt(create) => self.named(&create.funcname),
            NodeEnum::DefineStmt(define) => self.named(&define.defnames),
            NodeEnum::CreateEnumStmt(create) => self.named(&create.type_name),
            NodeEnum::CreateRangeStmt(create) => self.named(&create.type_name),
            NodeEnum::CreateDomainStmt(create) => self.named(&create.domainname),
            NodeEnum::CreateStatsStmt(create) => self.named(&create.defnames),
            NodeEnum::CreateConversionStmt(create) => self.named(&create.conversion_name),
            NodeEnum::CreateOpClassStmt(create) => self.named(&create.opclassname),
            NodeEnum::CreateOpFamilyStmt(create) => self.named(&create.opfamilyname),
            _ => {}
        }
        false
    }

    /// Records the creation of an object under this name.
    fn named(&mut self, parts: &[Node]) {
        match name(parts) {
            Some(("", _)) => self.flag(Flags::MAKES),
            Some((schema, _)) if is_temp_schema(schema) => self.pin(Pins::TEMP),
            _ => {}
        }
    }

    fn table(&mut self, create: &CreateStmt) {
        self.walk(|walk| {
            walk.created(create.relation.as_ref(), create.oncommit);
            walk.definitions(&create.table_elts);
            walk.definitions(&create.constraints);
            walk.bound(create.partbound.as_ref());
            walk.definitions(create.partspec.as_ref().map_or(&[], |spec| &spec.part_params));
        });
    }

    fn set(&mut self, set: &VariableSetStmt) {
        match set.kind() {
            VariableSetKind::VarResetAll => {
                self.unpin(Pins::SET);
                self.flag(Flags::RESETS_PARAMETERS);
            }
            VariableSetKind::VarReset => self.flag(Flags::RESETS_PARAMETERS),
            VariableSetKind::VarSetMulti if set.name == "TRANSACTION SNAPSHOT" => self.flag(Flags::SNAPSHOT),
            VariableSetKind::VarSetMulti if set.name != "SESSION CHARACTERISTICS" => {}
            _ if set.is_local => {
                if changes_reading(&set.name.to_ascii_lowercase()) {
                    self.flag(Flags::LOCAL);
                }
            }
            VariableSetKind::VarSetDefault => self.flag(Flags::RESETS_PARAMETERS),
            _ => match set.name.to_ascii_lowercase().as_str() {
                "role" | "session_authorization" => self.pin(Pins::ROLE),
                // The state of random(), which RESET ALL does not change.
                "seed" => self.pin(Pins::SEQUENCE),
                _ => self.pin(Pins::SET),
            },
        }
    }
}

/// True for `SELECT pg_advisory_unlock_all()` in which the call is certain to happen.
fn unlocks_all(select: &pg_query::protobuf::SelectStmt) -> bool {
    let conditional = select.with_clause.is_some()
        || select.where_clause.is_some()
        || select.having_clause.is_some()
        || select.limit_count.is_some()
        || select.limit_offset.is_some()
        || !select.from_clause.is_empty()
        || !select.group_clause.is_empty();
    let [Node { node: Some(NodeEnum::ResTarget(target)) }] = select.target_list.as_slice() else { return false };
    let Some(NodeEnum::FuncCall(call)) = target.val.as_ref().and_then(|value| value.node.as_ref()) else {
        return false;
    };
    !conditional
        && call.args.is_empty()
        && call.agg_filter.is_none()
        && matches!(name(&call.funcname), Some(("" | "pg_catalog", "pg_advisory_unlock_all")))
}
