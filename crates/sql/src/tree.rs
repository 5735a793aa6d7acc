//! Walk over expressions and queries: finds out if everything in them is known only to read, and which functions in them leave state in the session.
//!
//! The match over node kinds lists the allowed ones; a kind that is not listed is a write. The decoder of the tree limits the recursion: it rejects
//! more than 100 levels of messages.

use pg_query::protobuf::{
    self, JsonAggConstructor, JsonBehavior, JsonValueExpr, RangeVar, SelectStmt, WindowDef, WithClause,
};
use pg_query::{Node, NodeEnum};

use crate::class::{Flags, Pins};
use crate::functions::Functions;

/// Result of a walk.
pub(crate) struct Walk<'a> {
    functions: &'a Functions,
    /// True if there were only reads so far.
    pub(crate) read: bool,
    /// True if a function only reads according to the operator.
    pub(crate) foreign: bool,
    pub(crate) pins: Pins,
    /// The flags found among [`Flags::LOCAL`], [`Flags::LOCKS`], [`Flags::MAKES`], [`Flags::SNAPSHOT`], [`Flags::BEGIN_TIME`] and [`Flags::UNKNOWN`].
    pub(crate) flags: Flags,
}

impl<'a> Walk<'a> {
    pub(crate) fn new(functions: &'a Functions) -> Walk<'a> {
        Walk { functions, read: true, foreign: false, pins: Pins::NONE, flags: Flags::default() }
    }

    fn flag(&mut self, flag: Flags) {
        self.flags = self.flags.with(flag);
    }

    pub(crate) fn pin(&mut self, pins: Pins) {
        self.pins = self.pins.with(pins);
        self.read = false;
    }

    pub(crate) fn nodes(&mut self, nodes: &[Node]) {
        for node in nodes {
            self.node(node);
        }
    }

    pub(crate) fn maybe(&mut self, node: Option<&Node>) {
        if let Some(node) = node {
            self.node(node);
        }
    }

    pub(crate) fn node(&mut self, node: &Node) {
        // An absent element of a list (as in `x[:]`, or DISTINCT without ON).
        if let Some(node) = &node.node {
            self.statement(node);
        }
    }

    /// Walks a node without its wrapper: an expression, a query, or a statement that changes data.
    pub(crate) fn statement(&mut self, node: &NodeEnum) {
        match node {
            NodeEnum::AConst(_)
            | NodeEnum::AStar(_)
            | NodeEnum::ColumnRef(_)
            | NodeEnum::ParamRef(_)
            | NodeEnum::TypeName(_)
            | NodeEnum::String(_)
            | NodeEnum::Integer(_)
            | NodeEnum::Float(_)
            | NodeEnum::Boolean(_)
            | NodeEnum::BitString(_)
            | NodeEnum::SetToDefault(_)
            | NodeEnum::CurrentOfExpr(_)
            | NodeEnum::ColumnDef(_)
            | NodeEnum::Alias(_) => {}
            NodeEnum::SqlvalueFunction(value) => {
                if is_time(value) {
                    self.flag(Flags::BEGIN_TIME);
                }
            }
            NodeEnum::List(list) => self.nodes(&list.items),
            NodeEnum::AExpr(e) => {
                self.maybe(e.lexpr.as_deref());
                self.maybe(e.rexpr.as_deref());
            }
            NodeEnum::BoolExpr(e) => self.nodes(&e.args),
            NodeEnum::NullTest(e) => self.maybe(e.arg.as_deref()),
            NodeEnum::BooleanTest(e) => self.maybe(e.arg.as_deref()),
            NodeEnum::TypeCast(e) => self.maybe(e.arg.as_deref()),
            NodeEnum::CollateClause(e) => self.maybe(e.arg.as_deref()),
            NodeEnum::NamedArgExpr(e) => self.maybe(e.arg.as_deref()),
            NodeEnum::AIndirection(e) => {
                self.maybe(e.arg.as_deref());
                self.nodes(&e.indirection);
            }
            NodeEnum::AIndices(e) => {
                self.maybe(e.lidx.as_deref());
                self.maybe(e.uidx.as_deref());
            }
            NodeEnum::AArrayExpr(e) => self.nodes(&e.elements),
            NodeEnum::RowExpr(e) => self.nodes(&e.args),
            NodeEnum::CoalesceExpr(e) => self.nodes(&e.args),
            NodeEnum::MinMaxExpr(e) => self.nodes(&e.args),
            NodeEnum::CaseExpr(e) => {
                self.maybe(e.arg.as_deref());
                self.nodes(&e.args);
                self.maybe(e.defresult.as_deref());
            }
            NodeEnum::CaseWhen(e) => {
                self.maybe(e.expr.as_deref());
                self.maybe(e.result.as_deref());
            }
            NodeEnum::GroupingFunc(e) => self.nodes(&e.args),
            NodeEnum::GroupingSet(e) => self.nodes(&e.content),
            NodeEnum::SubLink(e) => {
                self.maybe(e.testexpr.as_deref());
                self.maybe(e.subselect.as_deref());
            }
            NodeEnum::FuncCall(call) => self.call(call),
            NodeEnum::ResTarget(e) => {
                self.nodes(&e.indirection);
                self.maybe(e.val.as_deref());
            }
            NodeEnum::MultiAssignRef(e) => self.maybe(e.source.as_deref()),
            NodeEnum::SortBy(e) => self.maybe(e.node.as_deref()),
            NodeEnum::WindowDef(window) => self.window(window),
            NodeEnum::RangeVar(relation) => self.relation(relation),
            NodeEnum::RangeSubselect(e) => self.maybe(e.subquery.as_deref()),
            NodeEnum::RangeFunction(e) => self.nodes(&e.functions),
            NodeEnum::RangeTableFunc(e) => {
                self.maybe(e.docexpr.as_deref());
                self.maybe(e.rowexpr.as_deref());
                self.nodes(&e.namespaces);
                self.nodes(&e.columns);
            }
            NodeEnum::RangeTableFuncCol(e) => {
                self.maybe(e.colexpr.as_deref());
                self.maybe(e.coldefexpr.as_deref());
            }
            NodeEnum::RangeTableSample(e) => {
                self.read &= matches!(name(&e.method), Some(("" | "pg_catalog", "system" | "bernoulli")));
                self.maybe(e.relation.as_deref());
                self.nodes(&e.args);
                self.maybe(e.repeatable.as_deref());
            }
            NodeEnum::JoinExpr(e) => {
                self.maybe(e.larg.as_deref());
                self.maybe(e.rarg.as_deref());
                self.maybe(e.quals.as_deref());
            }
            NodeEnum::CommonTableExpr(e) => {
                self.maybe(e.ctequery.as_deref());
                if let Some(cycle) = &e.cycle_clause {
                    self.maybe(cycle.cycle_mark_value.as_deref());
                    self.maybe(cycle.cycle_mark_default.as_deref());
                }
            }
            NodeEnum::SelectStmt(select) => self.select(select),
            NodeEnum::XmlExpr(e) => {
                self.nodes(&e.named_args);
                self.nodes(&e.args);
            }
            NodeEnum::XmlSerialize(e) => self.maybe(e.expr.as_deref()),
            NodeEnum::JsonIsPredicate(e) => self.maybe(e.expr.as_deref()),
            NodeEnum::JsonParseExpr(e) => self.json(e.expr.as_deref()),
            NodeEnum::JsonScalarExpr(e) => self.maybe(e.expr.as_deref()),
            NodeEnum::JsonSerializeExpr(e) => self.json(e.expr.as_deref()),
            NodeEnum::JsonValueExpr(e) => self.json(Some(e)),
            NodeEnum::JsonObjectConstructor(e) => self.nodes(&e.exprs),
            NodeEnum::JsonArrayConstructor(e) => self.nodes(&e.exprs),
            NodeEnum::JsonArrayQueryConstructor(e) => self.maybe(e.query.as_deref()),
            NodeEnum::JsonKeyValue(e) => {
                self.maybe(e.key.as_deref());
                self.json(e.value.as_deref());
            }
            NodeEnum::JsonObjectAgg(e) => {
                self.json_aggregate(e.constructor.as_deref());
                if let Some(pair) = &e.arg {
                    self.maybe(pair.key.as_deref());
                    self.json(pair.value.as_deref());
                }
            }
            NodeEnum::JsonArrayAgg(e) => {
                self.json_aggregate(e.constructor.as_deref());
                self.json(e.arg.as_deref());
            }
            NodeEnum::JsonArgument(e) => self.json(e.val.as_deref()),
            NodeEnum::JsonFuncExpr(e) => {
                self.json(e.context_item.as_deref());
                self.maybe(e.pathspec.as_deref());
                self.nodes(&e.passing);
                self.json_behavior(e.on_empty.as_deref());
                self.json_behavior(e.on_error.as_deref());
            }
            NodeEnum::JsonTable(e) => {
                self.json(e.context_item.as_deref());
                self.nodes(&e.passing);
                self.nodes(&e.columns);
                self.json_behavior(e.on_error.as_deref());
            }
            NodeEnum::JsonTableColumn(e) => {
                self.nodes(&e.columns);
                self.json_behavior(e.on_empty.as_deref());
                self.json_behavior(e.on_error.as_deref());
            }
            // Writes, walked for the functions in them that leave state in the session.
            NodeEnum::InsertStmt(e) => {
                self.write(e.relation.as_ref(), e.with_clause.as_ref());
                self.maybe(e.select_stmt.as_deref());
                if let Some(conflict) = &e.on_conflict_clause {
                    self.nodes(&conflict.target_list);
                    self.maybe(conflict.where_clause.as_deref());
                }
                self.nodes(e.returning_clause.as_ref().map_or(&[], |r| &r.exprs));
            }
            NodeEnum::UpdateStmt(e) => {
                self.write(e.relation.as_ref(), e.with_clause.as_ref());
                self.nodes(&e.target_list);
                self.nodes(&e.from_clause);
                self.maybe(e.where_clause.as_deref());
                self.nodes(e.returning_clause.as_ref().map_or(&[], |r| &r.exprs));
            }
            NodeEnum::DeleteStmt(e) => {
                self.write(e.relation.as_ref(), e.with_clause.as_ref());
                self.nodes(&e.using_clause);
                self.maybe(e.where_clause.as_deref());
                self.nodes(e.returning_clause.as_ref().map_or(&[], |r| &r.exprs));
            }
            NodeEnum::MergeStmt(e) => {
                self.write(e.relation.as_ref(), e.with_clause.as_ref());
                self.maybe(e.source_relation.as_deref());
                self.maybe(e.join_condition.as_deref());
                self.nodes(&e.merge_when_clauses);
                self.nodes(e.returning_clause.as_ref().map_or(&[], |r| &r.exprs));
            }
            NodeEnum::MergeWhenClause(e) => {
                self.maybe(e.condition.as_deref());
                self.nodes(&e.target_list);
                self.nodes(&e.values);
            }
            // May contain a call.
            _ => {
                self.read = false;
                self.flag(Flags::UNKNOWN);
            }
        }
    }

    /// Walks parts of a definition, with the functions called when it is executed: `ALTER TABLE … ALTER COLUMN c TYPE text USING f(c)` calls `f` for
    /// each row.
    pub(crate) fn definitions(&mut self, nodes: &[Node]) {
        for node in nodes {
            self.definition(node.node.as_ref());
        }
    }

    pub(crate) fn definition(&mut self, node: Option<&NodeEnum>) {
        let Some(node) = node else { return };
        match node {
            NodeEnum::ColumnDef(column) => {
                self.maybe(column.raw_default.as_deref());
                self.definitions(&column.constraints);
            }
            NodeEnum::Constraint(constraint) => {
                self.maybe(constraint.raw_expr.as_deref());
                self.maybe(constraint.where_clause.as_deref());
                self.definitions(&constraint.exclusions);
            }
            NodeEnum::AlterTableCmd(command) => self.definition(command.def.as_ref().and_then(|def| def.node.as_ref())),
            NodeEnum::PartitionCmd(partition) => self.bound(partition.bound.as_ref()),
            NodeEnum::PartitionElem(part) => self.maybe(part.expr.as_deref()),
            NodeEnum::IndexElem(part) => self.maybe(part.expr.as_deref()),
            NodeEnum::List(list) => self.definitions(&list.items),
            // Contains no calls.
            NodeEnum::DefElem(_)
            | NodeEnum::RangeVar(_)
            | NodeEnum::ReplicaIdentityStmt(_)
            | NodeEnum::RoleSpec(_)
            | NodeEnum::TableLikeClause(_) => {}
            other => self.statement(other),
        }
    }

    /// Walks a partition bound: `FOR VALUES IN (f('a'))` calls `f`.
    pub(crate) fn bound(&mut self, bound: Option<&protobuf::PartitionBoundSpec>) {
        if let Some(bound) = bound {
            self.definitions(&bound.listdatums);
            self.definitions(&bound.lowerdatums);
            self.definitions(&bound.upperdatums);
        }
    }

    pub(crate) fn select(&mut self, select: &SelectStmt) {
        if let Some(into) = &select.into_clause {
            self.read = false;
            self.created(into.rel.as_ref(), into.on_commit);
        }
        if !select.locking_clause.is_empty() {
            self.read = false;
        }
        self.with(select.with_clause.as_ref());
        self.nodes(&select.distinct_clause);
        self.nodes(&select.target_list);
        self.nodes(&select.from_clause);
        self.maybe(select.where_clause.as_deref());
        self.nodes(&select.group_clause);
        self.maybe(select.having_clause.as_deref());
        self.nodes(&select.window_clause);
        self.nodes(&select.values_lists);
        self.nodes(&select.sort_clause);
        self.maybe(select.limit_offset.as_deref());
        self.maybe(select.limit_count.as_deref());
        for side in [&select.larg, &select.rarg].into_iter().flatten() {
            self.select(side);
        }
    }

    fn write(&mut self, relation: Option<&RangeVar>, with: Option<&WithClause>) {
        self.read = false;
        if let Some(relation) = relation {
            self.relation(relation);
        }
        self.with(with);
    }

    fn with(&mut self, with: Option<&WithClause>) {
        self.nodes(with.map_or(&[], |with| &with.ctes));
    }

    fn window(&mut self, window: &WindowDef) {
        self.nodes(&window.partition_clause);
        self.nodes(&window.order_clause);
        self.maybe(window.start_offset.as_deref());
        self.maybe(window.end_offset.as_deref());
    }

    fn json(&mut self, value: Option<&JsonValueExpr>) {
        if let Some(value) = value {
            self.maybe(value.raw_expr.as_deref());
            self.maybe(value.formatted_expr.as_deref());
        }
    }

    fn json_behavior(&mut self, behavior: Option<&JsonBehavior>) {
        self.maybe(behavior.and_then(|behavior| behavior.expr.as_deref()));
    }

    fn json_aggregate(&mut self, aggregate: Option<&JsonAggConstructor>) {
        if let Some(aggregate) = aggregate {
            self.maybe(aggregate.agg_filter.as_deref());
            self.nodes(&aggregate.agg_order);
            if let Some(window) = &aggregate.over {
                self.window(window);
            }
        }
    }

    /// Records the creation of a relation: a temporary one stays in the session, unless dropped at the end of the transaction.
    pub(crate) fn created(&mut self, relation: Option<&RangeVar>, on_commit: i32) {
        let Some(relation) = relation else { return };
        let temporary = relation.relpersistence == "t" || is_temp_schema(&relation.schemaname);
        if !temporary && relation.schemaname.is_empty() {
            self.flag(Flags::MAKES);
        }
        if temporary && on_commit != protobuf::OnCommitAction::OncommitDrop as i32 {
            self.pin(Pins::TEMP);
        }
    }

    pub(crate) fn relation(&mut self, relation: &RangeVar) {
        if is_temp_schema(&relation.schemaname) {
            self.pin(Pins::TEMP);
        }
        // By the name alone: extensions create such views in any schema.
        if is_about_the_node(&relation.relname) {
            self.read = false;
        }
    }

    pub(crate) fn call(&mut self, call: &protobuf::FuncCall) {
        self.nodes(&call.args);
        self.nodes(&call.agg_order);
        self.maybe(call.agg_filter.as_deref());
        if let Some(window) = &call.over {
            self.window(window);
        }
        let Some((schema, name)) = name(&call.funcname) else {
            self.read = false;
            self.flag(Flags::UNKNOWN);
            return;
        };
        if !self.functions.knows(schema, name) {
            self.flag(Flags::UNKNOWN);
        }
        if !self.functions.reads(schema, name) {
            self.read = false;
        }
        self.foreign |= !Functions::is_own(schema, name);
        if is_temp_schema(schema) {
            self.pin(Pins::TEMP);
        }
        // In any schema of the extension.
        if matches!(name, "dblink_connect" | "dblink_connect_u") {
            self.pin(Pins::LOAD);
        }
        if !matches!(schema, "" | "pg_catalog") {
            return;
        }
        match name {
            "currval" | "lastval" | "setseed" => self.pin(Pins::SEQUENCE),
            "pg_advisory_lock" | "pg_advisory_lock_shared" | "pg_try_advisory_lock" | "pg_try_advisory_lock_shared" => {
                self.pin(Pins::ADVISORY_LOCK);
            }
            // The parameter's name may be a literal, on which the class must not depend: it could be the role.
            "set_config" if !(call.args.len() == 3 && is_true(&call.args[2])) => self.pin(Pins::PARAMETERS),
            "set_config" => self.flag(Flags::LOCAL),
            "pg_export_snapshot" => self.flag(Flags::SNAPSHOT),
            "now" | "transaction_timestamp" => self.flag(Flags::BEGIN_TIME),
            // `age(x)` counts from CURRENT_DATE.
            "age" if call.args.len() == 1 => self.flag(Flags::BEGIN_TIME),
            "pg_backup_start" | "pg_start_backup" | "pg_replication_origin_session_setup" => self.pin(Pins::FUNCTION),
            _ => {}
        }
        if name.starts_with("pg_advisory_") || name.starts_with("pg_try_advisory_") {
            self.flag(Flags::LOCKS);
        }
    }
}

/// True for the keywords of date and time; the others are about the user or the database.
fn is_time(value: &protobuf::SqlValueFunction) -> bool {
    use protobuf::SqlValueFunctionOp as Op;
    !matches!(
        value.op(),
        Op::SvfopCurrentRole
            | Op::SvfopCurrentUser
            | Op::SvfopUser
            | Op::SvfopSessionUser
            | Op::SvfopCurrentCatalog
            | Op::SvfopCurrentSchema
    )
}

/// Returns schema (empty if none) and name of a qualified name of at most two parts.
pub(crate) fn name(parts: &[Node]) -> Option<(&str, &str)> {
    match parts {
        [name] => Some(("", string(name)?)),
        [schema, name] => Some((string(schema)?, string(name)?)),
        _ => None,
    }
}

fn string(node: &Node) -> Option<&str> {
    match &node.node {
        Some(NodeEnum::String(s)) => Some(&s.sval),
        _ => None,
    }
}

/// True for the keyword TRUE, which the parser represents as a cast of a boolean constant.
fn is_true(node: &Node) -> bool {
    match &node.node {
        Some(NodeEnum::AConst(c)) => matches!(&c.val, Some(protobuf::a_const::Val::Boolval(b)) if b.boolval),
        Some(NodeEnum::TypeCast(cast)) => {
            cast.type_name.as_ref().is_some_and(|t| name(&t.names) == Some(("pg_catalog", "bool")))
                && cast.arg.as_deref().is_some_and(is_true)
        }
        _ => false,
    }
}

pub(crate) fn is_temp_schema(schema: &str) -> bool {
    schema == "pg_temp" || schema.starts_with("pg_temp_")
}

/// True for views about the server, the session or its files rather than the data.
fn is_about_the_node(relation: &str) -> bool {
    const NAMES: [&str; 13] = [
        "pg_aios",
        "pg_available_extension_versions",
        "pg_available_extensions",
        "pg_backend_memory_contexts",
        "pg_config",
        "pg_cursors",
        "pg_dsm_registry_allocations",
        "pg_file_settings",
        "pg_locks",
        "pg_prepared_statements",
        "pg_prepared_xacts",
        "pg_settings",
        "pg_wait_events",
    ];
    const PREFIXES: [&str; 5] = ["pg_stat_", "pg_statio_", "pg_replication_", "pg_shmem", "pg_buffercache"];
    if !relation.starts_with("pg_") {
        return false;
    }
    NAMES.contains(&relation)
        || PREFIXES.iter().any(|prefix| relation.starts_with(prefix))
        || matches!(relation, "pg_hba_file_rules" | "pg_ident_file_mappings" | "pg_subscription_rel")
}
