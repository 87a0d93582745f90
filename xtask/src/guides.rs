//! Tests that the equivalents which the guides list compile: each code cell of their tables is part
//! of a program in `async/tests/coming_from/`. And that guides for systems that are described in a
//! document name each type and field of it.

use crate::files;

/// The guides and the programs that their cells are part of.
const GUIDES: &[&str] = &["governor", "tokio-semaphore"];

/// The types, fields and parameters of the systems that guides are for.
const DESCRIBED: &[(&str, &str)] = &[
    (
        "ocelot",
        "ClientWhitelist EnableRateLimiting Limit Period PeriodTimespan ClientIdHeader \
         DisableRateLimitHeaders HttpStatusCode QuotaExceededMessage RateLimitCounterPrefix \
         EnableHeaders StatusCode QuotaMessage KeyPrefix Wait RouteKeys GlobalConfiguration \
         RateLimitOptions BaseUrl GlobalRateLimitRules Pattern Methods DownstreamPathTemplate \
         RateLimitRule X-Rate-Limit Retry-After",
    ),
    (
        "azure",
        "IResourceLimiter EstimatedCount TryAcquire AcquireAsync requestedCount minimumCount \
         cancellationToken IResourceWrapper Count Release Dispose",
    ),
    // Azure Container Registry.
    (
        "azure",
        "IRateLimiter ProcessRequestAsync RateLimiterResponse IRateLimiterCounterStore \
         GetCounterAsync counterId RateLimiterCounter GetCountersAsync counterIds \
         IncrementAndGetAsync expiryTimeSpan incrementValue IRateLimitPolicy Name Limit Period \
         NumberOfWindows CounterStore CounterSyncChannel ISyncChannel IRateLimitPolicyRule \
         PriorityIndex Type RequestId Methods IncludedPaths IsEnabled ServiceTier Policies \
         CounterStoreType IsSyncEnabled ETag IPolicyRuleStore GetAllPolicyRulesAsync \
         GetPolicyRuleAsync IPolicyRuleService FindMatchingPolices GetPoliciesForRule \
         PolicyRuleCount ILogger LogInfo LogDebug LogError LogWarning message detail \
         correlationId IRequestLogger LogRequest requestMarker requestHost responseStatus \
         extraData responseDurationInMs GenevaLogger",
    ),
    // OneAccess.
    (
        "azure",
        "RateLimitClient GetDecisionAsync RateLimitRequest Rules Target Container \
         RateLimitResponse IQuotaStore ReadQuotaAsync ids containerName ReadQuotaResult \
         WriteQuotaAsync TargetQuota UpdateResult RateLimitRule PolicyElement Name Override \
         RuleOverride TargetMatch PerSecond PerMinute PerHour PerDay PerWeek ThrottlingInSeconds \
         IRuleMatchingStrategy TryMatch matchingProperties IQuotaKeyGenerator GenerateKey \
         IQuotaRefillStrategy Refill readTimeInTicks",
    ),
    // Version 2.
    (
        "go-batcher",
        "Batcher NewBatcher NewBatcherWithBuffer WithRateLimiter WithFlushInterval \
         WithCapacityInterval WithAuditInterval WithMaxOperationTime WithPauseTime \
         WithErrorOnFullBuffer WithEmitBatch WithEmitFlush WithEmitRequest \
         WithMaxConcurrentBatches Enqueue Pause Flush Inflight OperationsInBuffer NeedsCapacity \
         Start NewOperation Payload Attempt Cost Watcher IsBatchable MakeAttempt NewWatcher \
         WithMaxAttempts WithMaxBatchSize MaxAttempts MaxBatchSize MaxOperationTime ProcessBatch \
         RateLimiter MaxCapacity Capacity GiveMe SharedResource NewSharedResource WithFactor \
         WithReservedCapacity WithSharedCapacity WithMaxInterval SetReservedCapacity \
         SetSharedCapacity LeaseManager RaiseEventsTo Provision CreatePartitions LeasePartition \
         NewAzureBlobLeaseManager NoOperationError NoWatcherError TooExpensiveError \
         TooManyAttemptsError BufferFullError BufferIsShutdown ImproperOrderError \
         InitializationOnlyError SharedCapacityNotProvisioned AuditMsgFailureOnTargetAndInflight \
         AuditMsgFailureOnTarget AuditMsgFailureOnInflight Eventer EventerBase AddListener \
         RemoveListener Emit batch pause resume shutdown audit-pass audit-fail audit-skip request \
         capacity released allocated target verified-container created-container provision-start \
         provision-done verified-blob created-blob failed error flush-start flush-done",
    ),
    // The Azure Throttling Solution.
    (
        "azure",
        "IThrottleClient GetDecision ThrottleEnforcement ReportActivity category value id \
         windowDuration thresholds minDecisionDuration decisionType",
    ),
];

fn read(path: &str) -> String {
    files::read(&files::root().join(path)).unwrap_or_else(|why| panic!("{why}"))
}

/// Returns the code in the second column of the tables, with the numbers of the lines.
fn cells(guide: &str) -> Vec<(usize, String)> {
    let mut cells = Vec::new();
    for (number, line) in guide.lines().enumerate() {
        // A `|` in code is escaped.
        let line = line.replace("\\|", "\0");
        let Some(cell) = line
            .strip_prefix("| ")
            .and_then(|rest| rest.split('|').nth(1))
        else {
            continue;
        };
        let mut before = "";
        for (nth, part) in cell.split('`').enumerate() {
            // Names of features and packages are no code.
            let is_name = before.trim_end().ends_with("feature") || part.starts_with("portcullis-");
            if nth % 2 == 1 && !is_name {
                cells.push((number + 1, part.replace('\0', "|")));
            }
            before = part;
        }
    }
    cells
}

/// Returns the text without white space and without the commas that rustfmt adds.
fn dense(text: &str) -> String {
    let dense: String = text.split_whitespace().collect();
    dense.replace(",)", ")")
}

/// Returns whether the cell is part of the program. The program can call a method of a value where
/// the cell has the type: `queue.acquire(n)` for `Queue::acquire(n)`.
fn is_compiled(cell: &str, program: &str) -> bool {
    let cell = dense(cell);
    let method = cell
        .split_once("::")
        .map(|(_, method)| format!(".{method}"));
    program.contains(&cell) || method.is_some_and(|method| program.contains(&method))
}

#[test]
fn the_cells_of_the_guides_compile() {
    for guide in GUIDES {
        let program = format!("async/tests/coming_from/{}.rs", guide.replace('-', "_"));
        let dense = dense(&read(&program));
        let guide = format!("docs/coming-from/{guide}.md");
        let cells = cells(&read(&guide));
        assert!(cells.len() > 9, "{guide} has no table");
        for (line, cell) in cells {
            let is_compiled = is_compiled(&cell, &dense);
            assert!(
                is_compiled,
                "{guide}:{line}: `{cell}` does not occur in {program}: add it"
            );
        }
    }
}

#[test]
fn guides_name_each_type_and_field_of_what_they_are_for() {
    for (guide, names) in DESCRIBED {
        let path = format!("docs/coming-from/{guide}.md");
        let guide = read(&path);
        // Between backticks, as a whole word.
        let code: Vec<&str> = guide.split('`').skip(1).step_by(2).collect();
        let is_part = |c: char| !c.is_alphanumeric() && c != '-';
        let words: Vec<&str> = { code.iter() }
            .flat_map(|code| code.split(is_part))
            .collect();
        let missing: Vec<&str> = names
            .split_whitespace()
            .filter(|name| !words.iter().any(|word| word.trim_end_matches('-') == *name))
            .collect();
        assert!(missing.is_empty(), "{path} does not name {missing:?}");
    }
}

#[test]
fn a_method_of_a_type_may_be_called_on_a_value() {
    let program = dense("let _ = queue.acquire(\n    n,\n).await;");
    assert!(is_compiled("Queue::acquire(n).await", &program));
    assert!(is_compiled("acquire(n)", &program));
    assert!(!is_compiled("Queue::acquire(m)", &program));
}

#[test]
fn the_code_of_the_second_column_is_found() {
    let guide = "| a | b |\n|---|---|\n| `x` | `y(\\|z\\| 1)`, feature `std` or `w` | `v` |\n";
    assert_eq!(
        cells(guide),
        [(3, "y(|z| 1)".to_owned()), (3, "w".to_owned())]
    );
}
