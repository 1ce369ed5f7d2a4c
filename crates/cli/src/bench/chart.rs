//! A chart of one run as SVG, written by hand: latency by percentile, throughput over time.

use std::fmt::Write as _;

use super::record::{Lane, Record, SLOT_NS};

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 420.0;
const PANEL: f64 = 390.0;
const TOP: f64 = 70.0;
const BOTTOM: f64 = 350.0;
/// Colours that stay apart for most colour-blind readers (Okabe, Ito).
pub(super) const GET: &str = "#0072b2";
pub(super) const PUT: &str = "#d55e00";
/// Percentiles along the x axis, evenly spaced: each step is ten times rarer.
const TICKS: &[(&str, f64)] =
    &[("0", 0.0), ("90", 0.9), ("99", 0.99), ("99.9", 0.999), ("99.99", 0.9999)];

/// One panel: where it lies and what its y axis spans.
pub(super) struct Panel {
    pub(super) left: f64,
    pub(super) width: f64,
    pub(super) y_max: f64,
    pub(super) y_min: f64,
    pub(super) log: bool,
}

impl Panel {
    fn y(&self, value: f64) -> f64 {
        let share = if self.log {
            (value.max(self.y_min) / self.y_min).ln() / (self.y_max / self.y_min).ln()
        } else {
            value / self.y_max
        };
        BOTTOM - share.clamp(0.0, 1.0) * (BOTTOM - TOP)
    }

    pub(super) fn x(&self, share: f64) -> f64 {
        self.left + share.clamp(0.0, 1.0) * self.width
    }

    pub(super) fn frame(&self, svg: &mut String, title: &str, labels: &[f64]) {
        let _ = writeln!(
            svg,
            "<text x='{}' y='{}' font-weight='bold'>{title}</text>",
            self.left,
            TOP - 14.0
        );
        for label in labels {
            let y = self.y(*label);
            let _ = writeln!(
                svg,
                "<line x1='{0}' x2='{1}' y1='{y:.1}' y2='{y:.1}' stroke='#ddd'/>\
                 <text x='{2}' y='{3:.1}' text-anchor='end' fill='#555'>{4}</text>",
                self.left,
                self.left + self.width,
                self.left - 6.0,
                y + 4.0,
                short(*label)
            );
        }
    }

    pub(super) fn line(&self, svg: &mut String, points: &[(f64, f64)], colour: &str) {
        let path: Vec<String> = points
            .iter()
            .map(|(x, value)| format!("{:.1},{:.1}", self.x(*x), self.y(*value)))
            .collect();
        let _ = writeln!(
            svg,
            "<polyline points='{}' fill='none' stroke='{colour}' stroke-width='2'/>",
            path.join(" ")
        );
    }
}

fn short(value: f64) -> String {
    if value >= 1e6 {
        format!("{:.3}M", value / 1e6).replace(".000", "")
    } else if value >= 1e3 {
        format!("{:.3}k", value / 1e3).replace(".000", "")
    } else {
        format!("{value}")
    }
}

/// Position of a quantile on the x axis: 0 at 0 %, 1 at 99.99 %.
fn percentile_x(quantile: f64) -> f64 {
    (-(1.0 - quantile).max(1e-6).log10()) / 4.0
}

fn latency_points(lane: &Lane) -> Vec<(f64, f64)> {
    (0..=80)
        .map(|i| {
            let quantile = 1.0 - 10f64.powf(-f64::from(i) / 20.0);
            (percentile_x(quantile), lane.quantile_us(quantile))
        })
        .collect()
}

pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// The chart of `record`, titled `title`.
#[expect(clippy::cast_precision_loss, reason = "drawn with one digit")]
pub(super) fn svg(title: &str, record: &Record) -> String {
    let mut svg = format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' \
         font-family='sans-serif' font-size='12'>\n<rect width='100%' height='100%' fill='white'/>\n\
         <text x='60' y='26' font-size='15'>{}</text>\n",
        escape(title)
    );
    let lanes = [("get", &record.get, GET), ("put", &record.put, PUT)];
    let lanes: Vec<_> = lanes.into_iter().filter(|(_, lane, _)| lane.requests > 0).collect();

    let lowest = lanes.iter().map(|l| l.1.quantile_us(0.0)).fold(f64::MAX, f64::min).max(0.1);
    let highest = lanes.iter().map(|l| l.1.quantile_us(0.9999)).fold(lowest * 2.0, f64::max);
    let y_min = 10f64.powf(lowest.log10().floor());
    let y_max = 10f64.powf(highest.log10().ceil()).max(y_min * 10.0);
    let latency = Panel { left: 60.0, width: PANEL, y_min, y_max, log: true };
    let decades: Vec<f64> =
        (0..8).map(|i| y_min * 10f64.powi(i)).take_while(|v| *v <= y_max * 1.01).collect();
    latency.frame(&mut svg, "latency in µs by percentile", &decades);
    for (label, quantile) in TICKS {
        let x = latency.x(percentile_x(*quantile));
        let _ = writeln!(
            svg,
            "<text x='{x:.1}' y='{}' text-anchor='middle' fill='#555'>{label}</text>",
            BOTTOM + 18.0
        );
    }

    let rates: Vec<f64> =
        record.slots.iter().map(|b| *b as f64 / (SLOT_NS as f64 / 1e9) / 1e6).collect();
    let peak = rates.iter().copied().fold(1.0, f64::max);
    let rate = Panel { left: 540.0, width: PANEL, y_min: 0.0, y_max: peak * 1.1, log: false };
    let step = 10f64.powf(peak.log10().floor());
    let marks: Vec<f64> =
        (0..=10).map(|i| step * f64::from(i)).take_while(|v| *v <= peak * 1.1).collect();
    rate.frame(&mut svg, "MB/s over time, 0.1 s slots", &marks);
    let last = rates.len().saturating_sub(1).max(1) as f64;
    let points: Vec<_> = rates.iter().enumerate().map(|(i, r)| (i as f64 / last, *r)).collect();
    rate.line(&mut svg, &points, "#009e73");
    let _ = writeln!(
        svg,
        "<text x='{}' y='{}' text-anchor='end' fill='#555'>{:.1} s</text>",
        rate.x(1.0),
        BOTTOM + 18.0,
        rates.len() as f64 * SLOT_NS as f64 / 1e9
    );
    for (i, (name, lane, colour)) in lanes.iter().enumerate() {
        latency.line(&mut svg, &latency_points(lane), colour);
        let x = 60.0 + i as f64 * 80.0;
        let _ = writeln!(
            svg,
            "<rect x='{x}' y='388' width='14' height='4' fill='{colour}'/>\
             <text x='{}' y='396'>{name}</text>",
            x + 20.0
        );
    }
    svg.push_str("</svg>\n");
    svg
}

#[cfg(test)]
mod tests {
    use super::super::record::{Outcome, Record};

    #[test]
    fn a_chart_is_drawn_from_little_and_from_nothing() {
        let mut record = Record::new();
        assert!(super::svg("none", &record).ends_with("</svg>\n"));
        record.add(true, 0, 5_000, Outcome { done: 1, bytes: 4096, ..Outcome::default() });
        let svg = super::svg("4 KiB <get>", &record);
        assert!(svg.contains("4 KiB &lt;get&gt;"));
        assert!(!svg.contains("NaN"), "{svg}");
        assert!(!svg.contains("inf"), "{svg}");
    }
}
