//! The Prometheus text format, version 0.0.4.

use std::fmt::Write as _;

use super::{HistogramSnapshot, bucket_bound_us};

/// A page of metrics under construction. Series of one name must be written together.
#[derive(Debug, Default)]
pub struct Page {
    text: String,
}

/// Name and help text of a metric.
pub type Family<'a> = (&'a str, &'a str);

impl Page {
    /// The page.
    #[must_use]
    pub fn into_text(self) -> String {
        self.text
    }

    fn family(&mut self, (name, help): Family<'_>, kind: &str) {
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    /// A number without labels; `kind` is `counter` or `gauge`.
    pub fn one(&mut self, family: Family<'_>, kind: &str, value: u64) {
        self.family(family, kind);
        let _ = writeln!(self.text, "{} {value}", family.0);
    }

    /// Numbers with labels, as [`label`] makes them.
    pub fn many(
        &mut self,
        family: Family<'_>,
        kind: &str,
        values: impl Iterator<Item = (String, u64)>,
    ) {
        self.family(family, kind);
        for (labels, value) in values {
            let _ = writeln!(self.text, "{}{{{labels}}} {value}", family.0);
        }
    }

    /// Histograms with labels, in seconds.
    pub fn histograms(
        &mut self,
        family: Family<'_>,
        values: impl Iterator<Item = (String, HistogramSnapshot)>,
    ) {
        self.family(family, "histogram");
        for (labels, histogram) in values {
            self.histogram(family.0, &labels, &histogram);
        }
    }

    fn histogram(&mut self, name: &str, labels: &str, histogram: &HistogramSnapshot) {
        let mut sum = 0;
        for (index, count) in histogram.counts.iter().enumerate() {
            sum += count;
            // Every other bound, and no bucket twice: half the series, still two per octave below.
            match bucket_bound_us(index) {
                Some(bound) if index.is_multiple_of(2) => {
                    let le = seconds(bound);
                    let _ = writeln!(self.text, "{name}_bucket{{{labels},le=\"{le}\"}} {sum}");
                }
                _ => {}
            }
        }
        let count = histogram.count();
        let _ = writeln!(self.text, "{name}_bucket{{{labels},le=\"+Inf\"}} {count}");
        let _ = writeln!(self.text, "{name}_sum{{{labels}}} {}", seconds(histogram.sum_us));
        let _ = writeln!(self.text, "{name}_count{{{labels}}} {count}");
    }
}

/// Microseconds as seconds, exactly.
fn seconds(us: u64) -> String {
    let text = format!("{}.{:06}", us / 1_000_000, us % 1_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A label with its value, escaped.
#[must_use]
pub fn label(name: &str, value: &str) -> String {
    let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("{name}=\"{value}\"")
}

#[cfg(test)]
mod tests {
    use super::super::Histogram;
    use super::*;

    #[test]
    fn seconds_are_exact() {
        assert_eq!(seconds(0), "0");
        assert_eq!(seconds(1), "0.000001");
        assert_eq!(seconds(1_500_000), "1.5");
    }

    #[test]
    fn labels_are_escaped() {
        assert_eq!(label("a", "x\"\\\n"), "a=\"x\\\"\\\\\\n\"");
    }

    #[test]
    fn histograms_accumulate() {
        let histogram = Histogram::default();
        histogram.observe_us(3);
        histogram.observe_us(1000);
        let mut page = Page::default();
        page.histogram("h", "a=\"b\"", &histogram.snapshot());
        assert!(page.text.contains("h_bucket{a=\"b\",le=\"0.000004\"} 1\n"), "{}", page.text);
        assert!(page.text.contains("h_bucket{a=\"b\",le=\"+Inf\"} 2\n"));
        assert!(page.text.contains("h_sum{a=\"b\"} 0.001003\n"));
        assert!(page.text.contains("h_count{a=\"b\"} 2\n"));
    }
}
