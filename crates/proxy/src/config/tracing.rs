//! `[proxy.tracing]`: traces of statements.

::settings::settings! {
    /// `[proxy.tracing]`: OpenTelemetry spans of statements.
    #[derive(Clone, PartialEq)]
    pub struct TracingConfig: Default {
        /// Collector, http:// or https://; not set: nothing is traced.
        pub endpoint: Option<String> = None, example(r#""http://127.0.0.1:4317""#), at_start();
        /// Share of statements that are traced by chance; not set: only those whose comment says so.
        pub ratio: Option<f64> = None, example("0.001");
        /// True if a statement with a traceparent in a comment is traced when, and only when, that is sampled.
        pub comments: bool = true;
        /// Service name of the spans.
        pub service_name: String = "kingpost".into(), at_start();
        /// CAs of the collector's certificate, PEM, for https://; not set: the system's.
        pub ca_file: Option<std::path::PathBuf> = None, example(r#""/etc/kingpost/collector-ca.pem""#), at_start();
        /// Certificate that is shown to the collector, PEM.
        pub cert_file: Option<std::path::PathBuf> = None, example(r#""/etc/kingpost/collector.crt""#), at_start();
        /// Key of that certificate, PEM.
        pub key_file: Option<std::path::PathBuf> = None, example(r#""/etc/kingpost/collector.key""#), at_start();
        /// Headers of each request, a token for example. To another machine only with https://.
        pub headers: Vec<String> = Vec::new(), secret(), example(r#"["authorization: Bearer a-token"]"#), at_start();
    }
}

impl std::fmt::Debug for TracingConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // A header may be a token.
        f.debug_struct("TracingConfig")
            .field("endpoint", &self.endpoint)
            .field("ratio", &self.ratio)
            .field("comments", &self.comments)
            .finish_non_exhaustive()
    }
}
