//! Three panels as SVG: fill of the disks, recovery, data moved.

use std::fmt::Write as _;

use super::report::{Report, as_f64};

const PANEL: f64 = 280.0;
const TOP: f64 = 80.0;
const BOTTOM: f64 = 330.0;
/// Colours that stay apart for most colour-blind readers (Okabe, Ito).
const FILL: &str = "#0072b2";
const PEERS: &str = "#009e73";
const MOVED: &str = "#d55e00";
const LEAST: &str = "#999999";
/// Points of a curve: more are not seen.
const POINTS: usize = 200;

struct Panel {
    left: f64,
    max: f64,
}

impl Panel {
    fn y(&self, value: f64) -> f64 {
        BOTTOM - (value / self.max).clamp(0.0, 1.0) * (BOTTOM - TOP)
    }

    fn frame(&self, svg: &mut String, title: &str, below: &str) {
        let _ = writeln!(
            svg,
            "<text x='{}' y='{}' font-weight='bold'>{}</text>\
             <text x='{}' y='{}' text-anchor='middle' fill='#555'>{}</text>",
            self.left,
            TOP - 16.0,
            escape(title),
            self.left + PANEL / 2.0,
            BOTTOM + 20.0,
            escape(below)
        );
        for quarter in 0..=4 {
            let value = self.max * f64::from(quarter) / 4.0;
            let y = self.y(value);
            let _ = writeln!(
                svg,
                "<line x1='{0}' x2='{1}' y1='{y:.1}' y2='{y:.1}' stroke='#ddd'/>\
                 <text x='{2}' y='{3:.1}' text-anchor='end' fill='#555'>{4}</text>",
                self.left,
                self.left + PANEL,
                self.left - 6.0,
                y + 4.0,
                number(value)
            );
        }
    }

    /// Values in order, from the least to the greatest.
    fn curve(&self, svg: &mut String, values: &[f64], colour: &str) {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().saturating_sub(1);
        let points: Vec<String> = (0..=POINTS)
            .filter_map(|i| {
                let value = sorted.get(last * i / POINTS)?;
                #[expect(clippy::cast_precision_loss, reason = "a place on the x axis")]
                let x = self.left + PANEL * i as f64 / POINTS as f64;
                Some(format!("{x:.1},{:.1}", self.y(*value)))
            })
            .collect();
        let _ = writeln!(
            svg,
            "<polyline points='{}' fill='none' stroke='{colour}' stroke-width='2'/>",
            points.join(" ")
        );
    }
}

fn number(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// A round number at or above `value`.
fn ceiling(value: f64) -> f64 {
    let step = 10f64.powf(value.max(1e-3).log10().floor());
    (value / step).ceil().max(1.0) * step
}

/// The chart of a report.
pub(super) fn svg(report: &Report) -> String {
    let mut svg = format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 1080 390' font-family='sans-serif' \
         font-size='12'>\n<rect width='100%' height='100%' fill='white'/>\n\
         <text x='50' y='28' font-size='15'>{} nodes, {} disks, {} failure domains, {} chains of {} \
         replicas</text>\n",
        report.nodes, report.disks, report.domains, report.chains, report.replicas
    );
    let fill = Panel { left: 50.0, max: ceiling(report.balance.fill.max) };
    fill.frame(&mut svg, "fill of a disk in %", "disks, from the emptiest to the fullest");
    fill.curve(&mut svg, &report.balance.fills, FILL);

    #[expect(clippy::cast_precision_loss, reason = "numbers of disks")]
    let peers: Vec<f64> = report.recovery.iter().map(|found| found.peers as f64).collect();
    let most = peers.iter().copied().fold(1.0, f64::max);
    let recovery = Panel { left: 405.0, max: ceiling(most) };
    recovery.frame(
        &mut svg,
        "disks that recover a failed one",
        "failed disks, from fewest to most",
    );
    recovery.curve(&mut svg, &peers, PEERS);
    moved(&mut svg, report);
    svg.push_str("</svg>\n");
    svg
}

/// Bars of the data that each change moved, beside the least there could be.
fn moved(svg: &mut String, report: &Report) {
    const TIB: f64 = 1_099_511_627_776.0;
    let bytes = report.changes.iter().flat_map(|change| [change.moved_bytes, change.least_bytes]);
    let most = bytes.map(as_f64).fold(0.0, f64::max) / TIB;
    let panel = Panel { left: 760.0, max: ceiling(most) };
    panel.frame(svg, "data moved in TiB (grey: the least possible)", "");
    #[expect(clippy::cast_precision_loss, reason = "some changes")]
    let step = PANEL / report.changes.len().max(1) as f64;
    for (i, change) in report.changes.iter().enumerate() {
        #[expect(clippy::cast_precision_loss, reason = "some changes")]
        let left = panel.left + step * i as f64;
        let bars = [(change.moved_bytes, MOVED, 0.15), (change.least_bytes, LEAST, 0.5)];
        for (bytes, colour, at) in bars {
            let y = panel.y(as_f64(bytes) / TIB);
            let _ = writeln!(
                svg,
                "<rect x='{:.1}' y='{y:.1}' width='{:.1}' height='{:.1}' fill='{colour}'/>",
                left + step * at,
                step * 0.33,
                BOTTOM - y
            );
        }
        let _ = writeln!(
            svg,
            "<text x='{:.1}' y='{}' text-anchor='middle' fill='#555'>{}</text>",
            left + step / 2.0,
            // Neighbours on two lines, so that long names do not meet.
            if i % 2 == 0 { BOTTOM + 20.0 } else { BOTTOM + 36.0 },
            escape(&change.name)
        );
    }
}
