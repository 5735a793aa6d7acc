//! `[[proxy.traffic]]`: limits on statements.

use crate::traffic::{self, Given, Rate, Rule, RuleError};

::settings::settings! {
    /// `[[proxy.traffic]]`: a limit on statements. All that is given has to apply to a statement.
    #[derive(Debug, Clone, PartialEq)]
    pub struct TrafficConfig {
        /// Unique name, by which operators change the rule (LIMIT, BLOCK, LIFT in the console), and which errors say.
        pub name: String, example(r#""search""#);
        /// The cluster whose statements it is about, where there are several (`[[clusters]]`); if not given, each has the limits for itself.
        pub cluster: Option<String> = None, example(r#""billing""#);
        /// The clients' user.
        pub user: Option<String> = None, example(r#""app""#);
        /// The database, by the name that clients use.
        pub database: Option<String> = None, example(r#""reports""#);
        /// The statement: a text, in which literals do not count, or its fingerprint in SHOW STATEMENTS.
        pub statement: Option<String> = None, example(r#""SELECT * FROM products WHERE name LIKE '%x%'""#);
        /// Kind of statements: "read", or "write" (all that only the primary may run); if not given, both.
        pub access: Option<TrafficAccess> = None, example(r#""read""#);
        /// Units with the limits for themselves: "user", "database", or both; if not given, all share them.
        pub each: Vec<TrafficEach> = Vec::new(), example(r#"["user"]"#);
        /// Statements per time: 100/s, 30/min, 500/h.
        pub rate: Option<String> = None, example(r#""50/s""#);
        /// Most statements at once; if not given, as many as the rate allows in a second.
        pub burst: Option<u32> = None, range(1, 1_000_000), example("100");
        /// Most clients that run such a statement at the same time.
        pub concurrency: Option<u32> = None, range(1, 1_000_000), example("8");
        /// True if no such statement runs at all.
        pub block: bool = false;
        /// True if nothing is refused, and the statements that would be are counted.
        pub dry_run: bool = false;
    }
}

::settings::settings! {
    /// Kind of statement.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum TrafficAccess {
        /// Statements that replicas may run.
        Read = "read",
        /// Other statements, including doubtful ones.
        Write = "write",
    }
}

::settings::settings! {
    /// Unit with limits of its own.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum TrafficEach {
        /// Each user.
        User = "user",
        /// Each database.
        Database = "database",
    }
}

impl TrafficConfig {
    /// As a configuration would have this rule.
    #[must_use]
    pub fn of(rule: &Rule) -> TrafficConfig {
        let (whose, limits) = (&rule.whose, rule.limits);
        let access = |access| match access {
            sql::Access::Read => TrafficAccess::Read,
            sql::Access::Write => TrafficAccess::Write,
        };
        let each = [(whose.each_user, TrafficEach::User), (whose.each_database, TrafficEach::Database)];
        TrafficConfig {
            name: rule.name.clone(),
            cluster: None,
            user: whose.user.clone(),
            database: whose.database.clone(),
            statement: whose.statement.map(traffic::digits),
            access: whose.access.map(access),
            each: each.into_iter().filter_map(|(is, each)| is.then_some(each)).collect(),
            rate: limits.rate.map(Rate::written),
            burst: limits.rate.map(Rate::burst),
            concurrency: limits.concurrency,
            block: limits.block,
            dry_run: rule.dry_run,
        }
    }

    /// Returns the rule.
    ///
    /// # Errors
    /// The part that is invalid.
    pub fn rule(&self) -> Result<Rule, RuleError> {
        let access = |access| match access {
            TrafficAccess::Read => sql::Access::Read,
            TrafficAccess::Write => sql::Access::Write,
        };
        let given = Given {
            name: self.name.clone(),
            user: self.user.clone(),
            database: self.database.clone(),
            statement: self.statement.clone(),
            access: self.access.map(access),
            each_user: self.each.contains(&TrafficEach::User),
            each_database: self.each.contains(&TrafficEach::Database),
            rate: self.rate.clone(),
            burst: self.burst,
            concurrency: self.concurrency,
            block: self.block,
            dry_run: self.dry_run,
        };
        given.check()
    }
}
