use core::fmt;
use toml::{Table, Value};

/// A service and its load over time, and what must be reached.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Scenario {
    /// What it is called.
    pub name: String,
    /// How many seconds it lasts.
    pub seconds: f64,
    /// The limit to begin with: 20 if it does not say.
    pub initial: u32,
    /// How many limits stand before the service: 1 if it does not say.
    pub limiters: u32,
    /// By how many seconds changes and checks are shifted at most.
    pub phase: f64,
    /// What holds from when on, in the order of time.
    pub spans: Vec<Span>,
    /// What must be reached.
    pub checks: Vec<Check>,
}

/// A load and a service.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Span {
    /// From when on, in seconds.
    pub from: f64,
    /// Requests each second, in a Poisson process.
    pub load: f64,
    /// The load at the end of the span, to which it rises or falls evenly.
    pub load_to: f64,
    /// How many requests come at once.
    pub batch: u32,
    /// How many requests are served at once. The others queue, first in, first out.
    pub workers: u32,
    /// How long a worker takes.
    pub service: Service,
    /// Seconds that each request takes besides, on no worker.
    pub extra: f64,
    /// The share of the requests that take `slow` seconds more, on no worker.
    pub slow_share: f64,
    /// How many seconds more.
    pub slow: f64,
    /// Every so many seconds all workers pause; 0 for never.
    pub pause_every: f64,
    /// For so many seconds.
    pub pause: f64,
    /// How many seconds the clock of the limits is ahead.
    pub clock: f64,
}

/// The distribution of service times, in seconds.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Service {
    /// Always the same.
    Fixed(f64),
    /// Exponential, of this mean.
    Exponential(f64),
    /// Erlang-2, of this mean.
    Erlang(f64),
    /// A share of `few` takes `long`, the others `short`.
    Bimodal {
        /// The share.
        few: f64,
        /// Seconds.
        short: f64,
        /// Seconds.
        long: f64,
    },
    /// Pareto: a heavy tail, cut at 200 means.
    Pareto {
        /// Seconds.
        mean: f64,
        /// The exponent, above 1.
        shape: f64,
    },
}

/// Ranges for what is measured in a span of time.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Check {
    /// From when on, in seconds.
    pub from: f64,
    /// Until when.
    pub to: f64,
    /// The least share of the capacity that is served.
    pub goodput: Option<f64>,
    /// The highest mean latency, as a multiple of the latency without a queue.
    pub latency: Option<f64>,
    /// The least share of the requests that is admitted.
    pub admitted: Option<f64>,
    /// The lowest and the highest mean limit, all limiters together.
    pub limit: Option<[f64; 2]>,
    /// How far the mean limit may be from that of the check before, as a share.
    pub drift: Option<f64>,
}

/// Why a text is no scenario or no log: the message names the key or the line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScenarioError(String);

impl ScenarioError {
    pub(crate) const fn new(message: String) -> Self {
        Self(message)
    }
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl core::error::Error for ScenarioError {}

impl Service {
    /// Returns the mean, in seconds.
    pub fn mean(self) -> f64 {
        match self {
            Self::Fixed(mean)
            | Self::Exponential(mean)
            | Self::Erlang(mean)
            | Self::Pareto { mean, .. } => mean,
            Self::Bimodal { few, short, long } => (1.0 - few) * short + few * long,
        }
    }

    fn read(keys: &mut Keys<'_>) -> Result<Self, ScenarioError> {
        let table = keys.table("service")?;
        let mut of = Keys::new(table, "service");
        let service = if let Some(mean) = of.number("erlang")? {
            Self::Erlang(mean)
        } else if let Some(mean) = of.number("exponential")? {
            Self::Exponential(mean)
        } else if let Some(time) = of.number("fixed")? {
            Self::Fixed(time)
        } else if let Some(shape) = of.number("pareto")? {
            let mean = of.need("mean")?;
            Self::Pareto { mean, shape }
        } else {
            Self::Bimodal {
                few: of.need("few")?,
                short: of.need("short")?,
                long: of.need("long")?,
            }
        };
        of.end()?;
        if service.mean() > 0.0 {
            Ok(service)
        } else {
            Err(ScenarioError("`service`: times must be above 0".into()))
        }
    }
}

impl Span {
    /// Returns the latency without a queue, in seconds.
    pub fn base(&self) -> f64 {
        self.service.mean() + self.extra + self.slow_share * self.slow
    }

    /// Returns the requests that can be served each second.
    pub fn capacity(&self) -> f64 {
        let works = if self.pause_every > 0.0 {
            1.0 - self.pause / self.pause_every
        } else {
            1.0
        };
        f64::from(self.workers) / self.service.mean() * works
    }

    /// Returns when work of `work` seconds that begins at `now` ends, pauses included.
    pub(crate) fn end_of(&self, now: f64, work: f64) -> f64 {
        if self.pause_every <= 0.0 {
            return now + work;
        }
        let (mut now, mut left) = (now, work);
        loop {
            let begin = (now / self.pause_every).floor() * self.pause_every;
            now = now.max(begin + self.pause);
            let next = begin + self.pause_every;
            if now + left <= next {
                return now + left;
            }
            left -= next - now;
            now = next;
        }
    }

    fn read(table: &Table) -> Result<Self, ScenarioError> {
        let mut keys = Keys::new(table, "span");
        let load = keys.need("load")?;
        let span = Self {
            from: keys.number("from")?.unwrap_or(0.0),
            load,
            load_to: keys.number("load_to")?.unwrap_or(load),
            batch: keys.number("batch")?.unwrap_or(1.0) as u32,
            workers: keys.need("workers")? as u32,
            service: Service::read(&mut keys)?,
            extra: keys.number("extra")?.unwrap_or(0.0),
            slow_share: keys.number("slow_share")?.unwrap_or(0.0),
            slow: keys.number("slow")?.unwrap_or(0.0),
            pause_every: keys.number("pause_every")?.unwrap_or(0.0),
            pause: keys.number("pause")?.unwrap_or(0.0),
            clock: keys.number("clock")?.unwrap_or(0.0),
        };
        keys.end()?;
        if span.workers == 0 || span.batch == 0 || span.load <= 0.0 || span.load_to <= 0.0 {
            let error = "`span`: `load`, `load_to`, `workers` and `batch` must be above 0";
            return Err(ScenarioError(error.into()));
        }
        if span.pause_every > 0.0 && span.pause >= span.pause_every {
            let error = "`span`: `pause` must be shorter than `pause_every`";
            return Err(ScenarioError(error.into()));
        }
        Ok(span)
    }
}

impl Check {
    fn read(table: &Table) -> Result<Self, ScenarioError> {
        let mut keys = Keys::new(table, "check");
        let check = Self {
            from: keys.need("from")?,
            to: keys.need("to")?,
            goodput: keys.number("goodput")?,
            latency: keys.number("latency")?,
            admitted: keys.number("admitted")?,
            limit: keys.pair("limit")?,
            drift: keys.number("drift")?,
        };
        keys.end()?;
        if check.from < check.to {
            Ok(check)
        } else {
            Err(ScenarioError("`check`: `from` must be before `to`".into()))
        }
    }
}

impl Scenario {
    /// Reads a scenario in TOML.
    ///
    /// # Errors
    ///
    /// [`ScenarioError`] if the text is no TOML, or has keys that are missing, unknown or out of
    /// range.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        let table: Table = text
            .parse()
            .map_err(|error: toml::de::Error| ScenarioError(error.to_string()))?;
        let mut keys = Keys::new(&table, "scenario");
        let scenario = Self {
            name: keys.text("name")?,
            seconds: keys.need("seconds")?,
            initial: keys.number("initial")?.unwrap_or(20.0) as u32,
            limiters: keys.number("limiters")?.unwrap_or(1.0) as u32,
            phase: keys.number("phase")?.unwrap_or(0.0),
            spans: keys.list("span", Span::read)?,
            checks: keys.list("check", Check::read)?,
        };
        keys.end()?;
        let starts = scenario.spans.first().is_some_and(|span| span.from <= 0.0);
        if !starts || !scenario.spans.is_sorted_by(|a, b| a.from < b.from) {
            let error = "`span`: the first must begin at 0, and each later than the one before";
            return Err(ScenarioError(error.into()));
        }
        if scenario.limiters == 0 || scenario.initial == 0 {
            let error = "`limiters` and `initial` must be at least 1";
            return Err(ScenarioError(error.into()));
        }
        Ok(scenario)
    }
}

/// The keys of a table, of which none may be left over.
struct Keys<'a> {
    table: &'a Table,
    of: &'static str,
    read: Vec<&'static str>,
}

impl<'a> Keys<'a> {
    fn new(table: &'a Table, of: &'static str) -> Self {
        let read = Vec::new();
        Self { table, of, read }
    }

    fn get(&mut self, key: &'static str) -> Option<&'a Value> {
        self.read.push(key);
        self.table.get(key)
    }

    fn wrong(&self, key: &str, must: &str) -> ScenarioError {
        ScenarioError(format!("`{key}` of `{}` {must}", self.of))
    }

    fn number(&mut self, key: &'static str) -> Result<Option<f64>, ScenarioError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        number(value)
            .map(Some)
            .ok_or_else(|| self.wrong(key, "must be a number from 0 to 1e9"))
    }

    fn need(&mut self, key: &'static str) -> Result<f64, ScenarioError> {
        self.number(key)?
            .ok_or_else(|| self.wrong(key, "is missing"))
    }

    fn pair(&mut self, key: &'static str) -> Result<Option<[f64; 2]>, ScenarioError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let pair = value.as_array().filter(|pair| pair.len() == 2);
        pair.and_then(|pair| Some([number(&pair[0])?, number(&pair[1])?]))
            .map(Some)
            .ok_or_else(|| self.wrong(key, "must be two numbers, such as [20, 30]"))
    }

    fn text(&mut self, key: &'static str) -> Result<String, ScenarioError> {
        self.get(key)
            .and_then(Value::as_str)
            .map(String::from)
            .ok_or_else(|| self.wrong(key, "must be a text"))
    }

    fn table(&mut self, key: &'static str) -> Result<&'a Table, ScenarioError> {
        self.get(key)
            .and_then(Value::as_table)
            .ok_or_else(|| self.wrong(key, "must be a table"))
    }

    fn list<T>(
        &mut self,
        key: &'static str,
        read: impl Fn(&Table) -> Result<T, ScenarioError>,
    ) -> Result<Vec<T>, ScenarioError> {
        let Some(value) = self.get(key) else {
            return Ok(Vec::new());
        };
        let tables = value
            .as_array()
            .ok_or_else(|| self.wrong(key, "must be a list"))?;
        tables
            .iter()
            .map(|table| {
                let table = table.as_table();
                read(table.ok_or_else(|| self.wrong(key, "must be a list of tables"))?)
            })
            .collect()
    }

    fn end(self) -> Result<(), ScenarioError> {
        let unknown = self
            .table
            .keys()
            .find(|key| !self.read.contains(&key.as_str()));
        unknown.map_or(Ok(()), |key| Err(self.wrong(key, "is unknown")))
    }
}

fn number(value: &Value) -> Option<f64> {
    let number = value
        .as_float()
        .or_else(|| value.as_integer().map(|n| n as f64))?;
    (0.0..=1e9).contains(&number).then_some(number)
}
