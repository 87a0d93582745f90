//! A recorder of the crate `metrics` that keeps everything.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use metrics::{
    Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};

/// Keeps the instruments by their names and labels.
#[derive(Default)]
pub(crate) struct Kept {
    counters: Mutex<BTreeMap<String, Arc<AtomicU64>>>,
    gauges: Mutex<BTreeMap<String, Arc<AtomicU64>>>,
    histograms: Mutex<BTreeMap<String, Arc<Values>>>,
    pub(crate) described: Mutex<Vec<String>>,
}

#[derive(Default)]
struct Values(Mutex<Vec<f64>>);

impl HistogramFn for Values {
    fn record(&self, value: f64) {
        self.0.lock().unwrap().push(value);
    }
}

fn name(key: &Key) -> String {
    let labels: Vec<_> = key
        .labels()
        .map(|label| format!("{}={}", label.key(), label.value()))
        .collect();
    format!("{} {}", key.name(), labels.join(" "))
        .trim_end()
        .into()
}

impl Kept {
    fn describe(&self, name: &KeyName, unit: Option<Unit>) {
        let text = format!("{} {:?}", name.as_str(), unit.unwrap());
        self.described.lock().unwrap().push(text);
    }

    /// The counters, the gauges and the histograms that are not empty or 0.
    pub(crate) fn seen(&self) -> Vec<String> {
        let mut seen = Vec::new();
        for (name, count) in &*self.counters.lock().unwrap() {
            let count = count.load(Relaxed);
            seen.extend((count > 0).then(|| format!("{name}: {count}")));
        }
        for (name, gauge) in &*self.gauges.lock().unwrap() {
            let value = f64::from_bits(gauge.load(Relaxed));
            seen.extend((value != 0.0).then(|| format!("{name}: {value}")));
        }
        for (name, values) in &*self.histograms.lock().unwrap() {
            let values = values.0.lock().unwrap();
            seen.extend((!values.is_empty()).then(|| format!("{name}: {values:?}")));
        }
        seen
    }
}

impl Recorder for Kept {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, _: SharedString) {
        self.describe(&key, unit);
    }
    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, _: SharedString) {
        self.describe(&key, unit);
    }
    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, _: SharedString) {
        self.describe(&key, unit);
    }
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let mut counters = self.counters.lock().unwrap();
        Counter::from_arc(counters.entry(name(key)).or_default().clone())
    }
    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        let mut gauges = self.gauges.lock().unwrap();
        Gauge::from_arc(gauges.entry(name(key)).or_default().clone())
    }
    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        let mut histograms = self.histograms.lock().unwrap();
        Histogram::from_arc(histograms.entry(name(key)).or_default().clone())
    }
}
