//! The settings of this program: the table `serve` of the policy file, which the policy itself
//! ignores.

use core::fmt;
use core::net::IpAddr;
use core::ops::Range;
use core::time::Duration;
use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::Path;

use ipnet::IpNet;
use jsonc_parser::ParseOptions;
use portcullis_counters::OnFailure;
use portcullis_policy::{nearest, parse_period};
use portcullis_tower::fields::{Generation, ResetForm};
use serde::{Deserialize, Deserializer, de};
use toml::de::{DeTable, DeValue};

/// The table `serve`.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Settings {
    /// The networks of the proxies that may ask, and whose word counts for who the client is.
    #[serde(deserialize_with = "networks")]
    pub(crate) trusted: Vec<IpNet>,
    /// The header fields in which replies state the limits.
    pub(crate) fields: Fields,
    /// How long a request waits in a queue of the policy at most.
    #[serde(deserialize_with = "period")]
    pub(crate) wait: Duration,
    /// The counter stores, by the names that the file has in `stores`.
    pub(crate) stores: BTreeMap<String, StoreSettings>,
    /// Which entries of Envoy's descriptors are parts of a request.
    pub(crate) envoy: EnvoySettings,
}

/// The keys of the entries of Envoy's descriptors that are parts of a request.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct EnvoySettings {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) host: String,
    pub(crate) address: String,
    pub(crate) tier: String,
}

impl Default for EnvoySettings {
    fn default() -> Self {
        let [method, path, host, address, tier] =
            ["method", "path", "host", "remote_address", "tier"].map(Into::into);
        Self {
            method,
            path,
            host,
            address,
            tier,
        }
    }
}

/// The generations of header fields.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
pub(crate) enum Fields {
    #[serde(rename = "draft-11")]
    Draft11,
    #[serde(rename = "draft-7")]
    Draft7,
    #[serde(rename = "draft-6")]
    Draft6,
    #[serde(rename = "x")]
    X,
    #[serde(rename = "off")]
    Off,
}

impl Fields {
    pub(crate) const fn generation(self) -> Generation {
        match self {
            Self::Draft11 => Generation::Draft11,
            Self::Draft7 => Generation::Draft7,
            Self::Draft6 => Generation::Draft6,
            Self::X => Generation::X(ResetForm::Seconds),
            Self::Off => Generation::Off,
        }
    }
}

/// A counter store on a Redis server.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub(crate) struct StoreSettings {
    pub(crate) redis: Address,
    #[serde(default)]
    pub(crate) prefix: Option<String>,
    #[serde(default, deserialize_with = "some_period")]
    pub(crate) time_limit: Option<Duration>,
    #[serde(default)]
    pub(crate) when_down: WhenDown,
}

/// The address of a server, which may have a password.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Address(pub(crate) String);

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Address")
    }
}

impl<'de> Deserialize<'de> for Address {
    /// `env:NAME` is the value of a variable of the environment.
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let Some(name) = text.strip_prefix("env:") else {
            return Ok(Self(text));
        };
        let value = std::env::var(name);
        value
            .map(Self)
            .map_err(|error| de::Error::custom(format_args!("{name}: {error}")))
    }
}

/// What decides while a store has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WhenDown(pub(crate) OnFailure);

impl Default for WhenDown {
    fn default() -> Self {
        Self(OnFailure::Fail)
    }
}

impl<'de> Deserialize<'de> for WhenDown {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let share = || {
            let (part, whole) = text.split_once('/')?;
            let (part, whole) = (part.parse().ok()?, whole.parse().ok()?);
            (0 < part && part <= whole).then_some(OnFailure::Share { part, whole })
        };
        match &*text {
            // The reply is 503, not that of a limit that is used up: no client need be looked for.
            "deny" => Ok(Self(OnFailure::Fail)),
            "allow" => Ok(Self(OnFailure::Allow)),
            _ => share().map(Self).ok_or_else(|| {
                let text = format_args!("`{text}` is not deny, allow or a share such as 1/4");
                de::Error::custom(text)
            }),
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        let loopback =
            ["127.0.0.0/8", "::1/128"].map(|network| network.parse().expect("a network"));
        Self {
            trusted: loopback.to_vec(),
            fields: Fields::Draft11,
            wait: Duration::from_secs(1),
            stores: BTreeMap::new(),
            envoy: EnvoySettings::default(),
        }
    }
}

fn networks<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<IpNet>, D::Error> {
    let network = |text: String| {
        let address = || Some(IpNet::from(text.parse::<IpAddr>().ok()?));
        let network = text.parse().ok().or_else(address);
        network.ok_or_else(|| de::Error::custom(format_args!("`{text}` is no network")))
    };
    Vec::deserialize(from)?.into_iter().map(network).collect()
}

fn period<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(from)?;
    parse_period(&text).map_err(|error| de::Error::custom(format_args!("`{text}`: {error}")))
}

fn some_period<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    period(from).map(Some)
}

/// The file, of which only the table `serve` is read here.
#[derive(Default, Deserialize)]
#[serde(default)]
struct File {
    serve: Settings,
}

impl Settings {
    /// Reads the settings in a policy file.
    ///
    /// # Errors
    ///
    /// A text with a line for each setting that is not valid: the file, the place and why. Of a
    /// file in JSON, the first.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let text =
            fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let file = if is_toml(path) {
            toml(&text)
        } else {
            json(&text)
        };
        let file = file.map_err(|errors| {
            let errors = errors.into_iter();
            let lines = errors.map(|error| format!("{}:{error}", path.display()));
            lines.collect::<Vec<_>>().join("\n")
        })?;
        Ok(file.serve)
    }

    /// Whether a peer may ask.
    pub(crate) fn trusts(&self, peer: IpAddr) -> bool {
        let peer = peer.to_canonical();
        self.trusted.iter().any(|network| network.contains(&peer))
    }
}

/// Whether a file cannot be read at all, or is no TOML or JSON: then it has neither settings nor
/// rules.
pub(crate) fn is_malformed(path: &Path) -> bool {
    let Ok(text) = fs::read_to_string(path) else {
        return true;
    };
    if is_toml(path) {
        DeTable::parse(&text).is_err()
    } else {
        jsonc_parser::parse_to_serde_value::<de::IgnoredAny>(&text, &ParseOptions::default())
            .is_err()
    }
}

fn is_toml(path: &Path) -> bool {
    let extension = path.extension();
    extension.is_some_and(|extension| extension == "toml")
}

/// Reads a file in TOML. Each error begins with the line and the column, as those of the policy do.
///
/// The deserializer stops at the first error. So the setting that it is about is taken out of the
/// file, which then is read again, until no error is left. What is said to be missing then, because
/// it was taken out, is no error of its own.
fn toml(text: &str) -> Result<File, Vec<String>> {
    let (mut errors, mut taken_out) = (Vec::new(), HashSet::new());
    let mut table = match DeTable::parse(text) {
        Ok(table) => table,
        Err(error) => return Err(vec![placed(text, &error)]),
    };
    loop {
        match File::deserialize(toml::Deserializer::from(table.clone())) {
            Ok(file) if errors.is_empty() => return Ok(file),
            Ok(_) => break,
            Err(error) => {
                let at = error.span();
                let setting = at.clone().and_then(|at| take_out(table.get_mut(), &at));
                let lacks = setting.clone().zip(missing(error.message()));
                let was_there = lacks.is_some_and(|(mut of, name)| {
                    of.push(name.to_owned());
                    taken_out.contains(&of)
                });
                if !was_there {
                    errors.push((at, placed(text, &error)));
                }
                let Some(setting) = setting else {
                    break;
                };
                taken_out.insert(setting);
            }
        }
    }
    errors.sort_by_key(|(at, _)| at.as_ref().map_or(0, |at| at.start));
    Err(errors.into_iter().map(|(_, error)| error).collect())
}

/// The name of a setting that is missing, from the message of `serde`.
fn missing(message: &str) -> Option<&str> {
    message.strip_prefix("missing field `")?.strip_suffix('`')
}

/// Removes the innermost setting whose name or value has this place. Returns its name, after those
/// of the tables that it was in.
fn take_out(table: &mut DeTable<'_>, at: &Range<usize>) -> Option<Vec<String>> {
    let has = |span: Range<usize>| span.start <= at.start && at.end <= span.end;
    let inside = table.iter_mut().find_map(|(name, value)| {
        let DeValue::Table(inner) = value.get_mut() else {
            return None;
        };
        let mut path = take_out(inner, at)?;
        path.insert(0, name.get_ref().to_string());
        Some(path)
    });
    if inside.is_some() {
        return inside;
    }
    let mut settings = table.iter();
    let found = settings.find(|(name, value)| has(name.span()) || has(value.span()));
    let name = found.map(|(name, _)| name.clone())?;
    table.remove(&name)?;
    Some(vec![name.get_ref().to_string()])
}

/// An error with its place in the text.
fn placed(text: &str, error: &toml::de::Error) -> String {
    let start = error.span().map_or(0, |span| span.start);
    let before = &text[..text.floor_char_boundary(start)];
    let (line, column) = match before.rsplit_once('\n') {
        Some((lines, rest)) => (lines.matches('\n').count() + 2, rest.chars().count() + 1),
        None => (1, before.chars().count() + 1),
    };
    format!("{line}:{column}: {}", with_nearest(error.message()))
}

/// Reads a file in JSON. Its errors have no place.
fn json(text: &str) -> Result<File, Vec<String>> {
    let file = jsonc_parser::parse_to_serde_value(text, &ParseOptions::default());
    file.map_err(|error| vec![format!(" {}", with_nearest(&error.to_string()))])
}

/// Says of an unknown setting which one it probably means, as the policy says it of those of rules.
/// Only the message of `serde` has the name and those that are known.
fn with_nearest(message: &str) -> String {
    let unknown = || {
        let (_, rest) = message.split_once("unknown field `")?;
        rest.split_once("`, expected ")
    };
    let Some((name, expected)) = unknown() else {
        return message.to_owned();
    };
    let known: Vec<&str> = expected.split('`').skip(1).step_by(2).collect();
    let of = match known.first() {
        Some(&"redis") => "a table in serve.stores",
        Some(&"method") => "serve.envoy",
        _ => "serve",
    };
    let hint = match nearest(name, known.iter().copied()) {
        Some(nearest) => format!("did you mean {nearest}?"),
        None => format!("expected one of {}", known.join(", ")),
    };
    format!("{name} is not a setting of {of}: {hint}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(serve: &str) -> Result<Settings, String> {
        let file = toml(&format!("rules = []\n{serve}"));
        file.map(|file| file.serve)
            .map_err(|errors| errors.join("\n"))
    }

    #[test]
    fn all_wrong_settings_are_reported_in_the_order_of_the_file() {
        let error = read(
            "[serve]\nwait = 'soon'\ntrustd = []\ntrusted = ['10.0.0.0/33']\n\
             [serve.envoy]\nadress = 'a'\n\
             [serve.stores.a]\nwhen_down = 'deny'\n\
             [serve.stores.b]\nredis = 'r'\nwhen_down = '2/1'\ntime_limit = 1\n\
             [serve.stores.c]\nredis = 'env:PORTCULLIS_NO_SUCH_VARIABLE'\n",
        );
        let error = error.unwrap_err();
        let place = |line: &str| line.split(": ").next().map(str::to_owned);
        let places: Vec<_> = error.lines().filter_map(place).collect();
        assert_eq!(
            places,
            ["3:8", "4:1", "5:11", "7:1", "8:1", "12:13", "13:14", "15:9"],
            "{error}"
        );
        // What is no TOML has one error.
        assert_eq!(read("[serve").unwrap_err().lines().count(), 1);
    }

    #[test]
    fn an_unknown_setting_is_refused_with_the_one_that_it_probably_means() {
        for (settings, expected) in [
            (
                "serve.trustd = []",
                "2:7: trustd is not a setting of serve: did you mean trusted?",
            ),
            (
                "[serve]\nwait = '1s'\ncolour = 1",
                "4:1: colour is not a setting of serve: expected one of trusted, fields, wait, \
                 stores, envoy",
            ),
            (
                "[serve.envoy]\nadress = 'a'",
                "3:1: adress is not a setting of serve.envoy: did you mean address?",
            ),
            (
                "[serve.stores.a]\nredis = 'r'\nwhendown = 'deny'",
                "4:1: whendown is not a setting of a table in serve.stores: did you mean \
                 when_down?",
            ),
        ] {
            assert_eq!(read(settings).unwrap_err(), expected);
        }
        let error = json("{ \"rules\": [], \"serve\": { \"field\": \"off\" } }").map(|_| ());
        assert_eq!(
            error.unwrap_err(),
            [" field is not a setting of serve: did you mean fields?"]
        );
    }

    #[test]
    fn without_settings_only_loopback_may_ask() {
        let settings = read("").unwrap();
        for (peer, may) in [
            ("127.0.0.1", true),
            ("::ffff:127.0.0.1", true),
            ("::1", true),
            ("10.0.0.1", false),
            ("::2", false),
        ] {
            assert_eq!(settings.trusts(peer.parse().unwrap()), may, "{peer}");
        }
    }

    #[test]
    fn settings_are_read_and_wrong_ones_are_refused() {
        let settings = read(
            "[serve]\ntrusted = ['10.0.0.0/8', '192.0.2.7']\nfields = 'x'\nwait = '250ms'\n\
             [serve.stores.shared]\nredis = 'redis://127.0.0.1/'\nwhen_down = '1/4'",
        );
        let settings = settings.unwrap();
        assert!(settings.trusts("192.0.2.7".parse().unwrap()));
        assert!(!settings.trusts("127.0.0.1".parse().unwrap()));
        assert_eq!(settings.wait, Duration::from_millis(250));
        let store = &settings.stores["shared"];
        let share = OnFailure::Share { part: 1, whole: 4 };
        assert_eq!((store.when_down, store.time_limit), (WhenDown(share), None));
        assert!(
            !format!("{store:?}").contains("127"),
            "it may have a password"
        );
        for wrong in [
            "[serve]\ntrust = []",
            "[serve]\ntrusted = ['10.0.0.0/33']",
            "[serve]\nwait = '1'",
            "[serve.stores.a]\nredis = 'x'\nwhen_down = '2/1'",
            "[serve.stores.a]\nredis = 'x'\nwhen_down = '0/1'",
            "[serve.stores.a]\nredis = 'env:PORTCULLIS_NO_SUCH_VARIABLE'",
            "[serve.stores.a]",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
