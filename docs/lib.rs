//! Compiles the examples of the README files and of the guides as documentation tests.

macro_rules! documents {
    ($($name:ident: $text:expr,)*) => {$(
        #[cfg(doctest)]
        #[doc = $text]
        struct $name;
    )*};
}

documents! {
    Tour: include_str!("tour.md"),
    ReadmeOfCore: include_str!("../core/README.md"),
    ReadmeOfAdaptive: include_str!("../adaptive/README.md"),
    ReadmeOfAsync: include_str!("../async/README.md"),
    ReadmeOfCounters: include_str!("../counters/README.md"),
    ReadmeOfFleet: include_str!("../fleet/README.md"),
    ReadmeOfJobs: include_str!("../jobs/README.md"),
    ReadmeOfPolicy: include_str!("../policy/README.md"),
    ReadmeOfShm: include_str!("../shm/README.md"),
    ReadmeOfStores: include_str!("../stores/README.md"),
    ReadmeOfTower: include_str!("../tower/README.md"),
    Embedded: include_str!("embedded.md"),
    Overload: include_str!("overload.md"),
    PolicyFiles: include_str!("policies.md"),
    FromAzure: include_str!("coming-from/azure.md"),
    FromBucket4j: include_str!("coming-from/bucket4j.md"),
    FromClipperhouse: include_str!("coming-from/clipperhouse.md"),
    FromGoBatcher: include_str!("coming-from/go-batcher.md"),
    FromGovernor: include_str!("coming-from/governor.md"),
    FromGuava: include_str!("coming-from/guava.md"),
    FromOcelot: include_str!("coming-from/ocelot.md"),
    FromSentinel: include_str!("coming-from/sentinel.md"),
    FromTokio: include_str!("coming-from/tokio-semaphore.md"),
    FromXTimeRate: include_str!("coming-from/x-time-rate.md"),
}
