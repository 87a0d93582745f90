//! Arbitrary settings. A builder refuses them by name, or builds a limiter that never panics, at
//! any time.

use core::time::Duration;

use portcullis_core::builder::Setting;
use portcullis_core::keyed::IntoRules;
use portcullis_core::state::Word;
use portcullis_core::{
    FixedWindow, Limiter, LimiterExt, Rate, SettingsError, SlidingWindow, Timestamp, TokenBucket,
};

const DRAWS: u32 = 30_000;

/// Marsaglia's xorshift.
struct Draws(u64);

impl Draws {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn coin(&mut self) -> bool {
        self.next() & 1 == 1
    }

    /// Draws a number of any magnitude: as many numbers of one bit as of 64.
    fn number(&mut self) -> u64 {
        let bits = self.next() % 65;
        self.next().checked_shr((64 - bits) as u32).unwrap_or(0)
    }
}

#[derive(Clone, Debug)]
struct Settings {
    permits: u64,
    period: u64,
    burst: u64,
    initial: u64,
    limit: u64,
    window: u64,
    segments: u64,
    /// 0 means the default.
    tick: u64,
    staleness: u64,
    switch: bool,
    origin: u64,
}

impl Settings {
    fn draw(draws: &mut Draws) -> Self {
        let burst = draws.number();
        Self {
            permits: draws.number() >> 32,
            period: draws.number(),
            burst,
            initial: draws.number().min(burst),
            limit: draws.number(),
            window: draws.number(),
            segments: draws.next() % 10,
            tick: if draws.coin() { draws.number() } else { 0 },
            staleness: if draws.coin() { draws.number() } else { 0 },
            switch: draws.coin(),
            origin: draws.number(),
        }
    }

    fn set(&mut self, setting: Setting, value: u64) {
        let field = match setting {
            Setting::Burst => &mut self.burst,
            Setting::Initial => &mut self.initial,
            Setting::Limit => &mut self.limit,
            Setting::Rate => &mut self.permits,
            Setting::Period => &mut self.period,
            Setting::Window => &mut self.window,
            Setting::Segments => &mut self.segments,
            Setting::Tick => &mut self.tick,
            Setting::Staleness => &mut self.staleness,
            other => panic!("{other:?} is unknown to this test"),
        };
        assert!(
            *field > value,
            "{setting:?} of {field} is reported as larger than {value}"
        );
        *field = value;
        self.initial = self.initial.min(self.burst);
    }

    fn origin(&self) -> Timestamp {
        Timestamp::from_nanos(self.origin)
    }
}

/// Builds a limiter from settings, and then queries it.
type Build = fn(&Settings, &mut Draws) -> Result<(), SettingsError>;

/// Queries all that a limiter answers, at arbitrary times.
fn ask(limiter: &dyn Limiter, settings: &Settings, draws: &mut Draws) {
    let origin = settings.origin;
    let times = [
        origin,
        origin.saturating_add(draws.number()),
        draws.number(),
        draws.number(),
        u64::MAX,
    ];
    for now in times.map(Timestamp::from_nanos) {
        for n in [0, 1, draws.number() as u32] {
            let decision = limiter.try_acquire_at(now, n);
            assert!(limiter.available_at(now) <= limiter.capacity());
            if let Err(denied) = decision {
                let _ = denied.retry(limiter);
            }
            let _ = limiter.idle_at(now);
        }
    }
}

/// Checks that a limiter converts to the rules that its builder makes for a table of the same
/// settings, or that neither fits.
fn compare_rules<R: core::fmt::Debug>(
    converted: Result<R, SettingsError>,
    built: Result<R, SettingsError>,
    settings: &Settings,
) {
    let show = |rules| format!("{rules:?}");
    assert_eq!(
        converted.map(show).ok(),
        built.map(show).ok(),
        "{settings:?}"
    );
}

/// Draws settings, and applies each bound that an error names, until the settings are accepted or
/// nothing is left of them.
fn any(build: Build) {
    let mut draws = Draws(0x9e37_79b9_7f4a_7c15);
    let (mut built, mut refused) = (0, 0);
    for _ in 0..DRAWS {
        let mut settings = Settings::draw(&mut draws);
        for round in 0.. {
            assert!(round < 8, "no end to the refusals of {settings:?}");
            match build(&settings, &mut draws) {
                Ok(()) => built += 1,
                Err(SettingsError::TooLarge { setting, max }) => {
                    settings.set(setting, max);
                    refused += 1;
                    continue;
                }
                Err(_) => {}
            }
            break;
        }
    }
    assert!(
        built > DRAWS / 4 && refused > DRAWS / 8,
        "{built} built, {refused} refused"
    );
}

fn bucket<W: Word>(settings: &Settings, draws: &mut Draws) -> Result<(), SettingsError> {
    let rate = Rate::new(
        u32::try_from(settings.permits).unwrap(),
        Duration::from_nanos(settings.period),
    );
    let mut builder = TokenBucket::builder(rate, settings.burst)
        .initial(settings.initial)
        .origin(settings.origin());
    if settings.tick > 0 {
        builder = builder.tick(Duration::from_nanos(settings.tick));
    }
    if settings.staleness > 0 {
        builder = builder.staleness(Duration::from_nanos(settings.staleness));
    }
    if settings.switch {
        builder = builder.stepwise();
    }
    let bucket = builder.build_on::<W>()?;
    assert!(
        bucket.timing().staleness >= Duration::from_secs(1),
        "{:?} {settings:?}",
        bucket.timing().staleness
    );
    assert!(
        bucket.timing().horizon >= bucket.timing().staleness,
        "{:?} {:?} {settings:?}",
        bucket.timing().staleness,
        bucket.timing().horizon
    );
    assert_eq!(
        bucket.available_at(settings.origin()),
        settings.initial,
        "{settings:?}"
    );
    ask(&bucket, settings, draws);

    // A staleness is rounded up to whole ticks, which are finer in the longer word of a table.
    if settings.staleness > 0 {
        let longest = Duration::from_nanos(u64::MAX / 2);
        builder = builder.staleness(bucket.timing().staleness.min(longest));
    }
    // Steps of 1 ns have no origin.
    if bucket.timing().tick == Duration::from_nanos(1) {
        builder = builder.origin(Timestamp::ZERO);
    }
    let mut by_default = TokenBucket::builder(rate, settings.burst);
    // If a setting is the default of this word, that of a table replaces it.
    let staleness = by_default
        .tick(bucket.timing().tick)
        .build_on::<W>()?
        .timing()
        .staleness;
    let has_set_staleness = settings.staleness > 0 && staleness != bucket.timing().staleness;
    if settings.staleness > 0 {
        by_default = by_default.staleness(bucket.timing().staleness);
    }
    let tick = by_default
        .build_on::<W>()
        .map(|bucket| bucket.timing().tick);
    let has_set_tick = (settings.tick > 0 || settings.switch) && tick != Ok(bucket.timing().tick);
    if (has_set_staleness || settings.staleness == 0)
        && (has_set_tick || settings.tick == 0 && !settings.switch)
    {
        compare_rules(bucket.into_rules(), builder.rules(), settings);
        let debt = draws.number();
        if let Ok(bucket) = builder.debt(debt).build_on::<W>() {
            compare_rules(bucket.into_rules(), builder.debt(debt).rules(), settings);
        }
    }
    Ok(())
}

fn window<W: Word>(settings: &Settings, draws: &mut Draws) -> Result<(), SettingsError> {
    let length = Duration::from_nanos(settings.window);
    let mut builder = FixedWindow::builder(settings.limit, length).origin(settings.origin());
    if settings.tick > 0 {
        builder = builder.tick(Duration::from_nanos(settings.tick));
    }
    if settings.staleness > 0 {
        builder = builder.staleness(Duration::from_nanos(settings.staleness));
    }
    if settings.switch {
        builder = builder.started_by_first_request();
    }
    let window = builder.build_on::<W>()?;
    assert!(
        window.timing().staleness >= Duration::from_secs(1)
            && window.timing().horizon >= window.timing().staleness
    );
    assert!(
        settings.tick > 0 || window.timing().tick <= length,
        "{settings:?}"
    );
    ask(&window, settings, draws);

    if window.timing().tick == Duration::from_nanos(1) {
        builder = builder.origin(Timestamp::ZERO);
    }
    // The length was rounded up to whole ticks.
    let tick = window.timing().tick.as_nanos() as u64;
    if settings.switch && !settings.window.is_multiple_of(tick) {
        return Ok(());
    }
    // If a setting is the default of this word, that of a table replaces it.
    let mut by_default = FixedWindow::builder(settings.limit, length);
    if settings.switch {
        by_default = by_default.started_by_first_request();
    }
    let staleness = by_default
        .tick(window.timing().tick)
        .build_on::<W>()?
        .timing()
        .staleness;
    let has_set_staleness = settings.staleness > 0 && staleness != window.timing().staleness;
    if settings.staleness > 0 {
        by_default = by_default.staleness(window.timing().staleness);
    }
    let tick = by_default
        .build_on::<W>()
        .map(|window| window.timing().tick);
    let has_set_tick = settings.tick > 0 && settings.switch && tick != Ok(window.timing().tick);
    if (has_set_staleness || settings.staleness == 0)
        && (has_set_tick || settings.tick == 0 || !settings.switch)
    {
        compare_rules(window.into_rules(), builder.rules(), settings);
    }
    Ok(())
}

fn segments<W: Word>(settings: &Settings, draws: &mut Draws) -> Result<(), SettingsError> {
    let length = Duration::from_nanos(settings.window);
    let count = u32::try_from(settings.segments).unwrap();
    let mut builder =
        SlidingWindow::<8>::builder(settings.limit, length, count).origin(settings.origin());
    if settings.staleness > 0 {
        builder = builder.staleness(Duration::from_nanos(settings.staleness));
    }
    if settings.switch {
        builder = builder.strict();
    }
    let window = builder.build_on::<W>()?;
    assert!(
        window.timing().staleness >= Duration::from_secs(1)
            && window.timing().horizon >= window.timing().staleness
    );
    assert_eq!(u64::from(window.segments()), settings.segments);
    ask(&window, settings, draws);
    Ok(())
}

#[test]
fn of_a_token_bucket_on_64_bits() {
    any(bucket::<u64>);
}

#[test]
fn of_a_token_bucket_on_32_bits() {
    any(bucket::<u32>);
}

#[test]
fn of_a_fixed_window_on_64_bits() {
    any(window::<u64>);
}

#[test]
fn of_a_fixed_window_on_32_bits() {
    any(window::<u32>);
}

#[test]
fn of_a_sliding_window_on_64_bits() {
    any(segments::<u64>);
}

#[test]
fn of_a_sliding_window_on_32_bits() {
    any(segments::<u32>);
}
