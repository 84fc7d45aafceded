//! Networks: hosts at the bottom, switches above them in layers.

use std::collections::{BTreeMap, BTreeSet};

use super::canvas::{
    Anchor, BOLD, Canvas, GREY, INK, Look, Marker, NONE, PLAIN, QUIET, TextStyle, VERTICAL, WHITE,
    WIDTH, fit, look, text_width, widest,
};

/// A network to draw.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NetworkFigure {
    /// Title.
    pub title: String,
    /// A remark beside the title, in grey.
    pub note: String,
    /// Names of the switches.
    pub switches: Vec<String>,
    /// Names of the hosts, and the indices of their switches.
    pub hosts: Vec<(String, usize)>,
    /// Links between switches.
    pub links: Vec<(usize, usize)>,
    /// Links drawn differently from the others, by index in `links`.
    pub special: BTreeMap<usize, Special>,
    /// Names of hosts whose links are down at some time.
    pub failed_hosts: BTreeSet<String>,
}

/// A link drawn differently from the others.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Special {
    /// Whether it is down at some time.
    pub failed: bool,
    /// Text next to it, if there is room.
    pub label: String,
}

/// Above this number of hosts, each switch's hosts are drawn as one box.
const MOST_HOSTS: usize = 48;
/// Width of a vertical name, and the same with space between adjacent boxes.
const UPWARDS: f64 = 15.0;
const APART: f64 = 18.0;
/// Maximum width of the drawing.
const MOST_WIDTH: f64 = 2_400.0;
/// Space between rows, and above a row for links that are drawn around other boxes.
const GAP: f64 = 74.0;
const ARCS: f64 = 44.0;

const SWITCH: &str = "#ddecf7";
const LINK: &str = "#8c8c8c";
/// A link that is down at some time.
const FAILED: Look = look("#d55e00", 1.6, "4 3", Marker::Cross);
/// Maximum number of links with labels: more would overlap.
const MOST_LABELS: usize = 24;

/// Placement of the names of a row.
#[derive(Clone, Copy, PartialEq)]
enum Names {
    Across,
    Upwards,
    /// Only the names of the first and last box, above the row.
    Ends,
}

/// A row of boxes.
struct Row {
    labels: Vec<String>,
    /// Their centres.
    x: Vec<f64>,
    names: Names,
    top: f64,
    width: f64,
    height: f64,
    color: &'static str,
}

impl Row {
    fn new(labels: Vec<String>, x: Vec<f64>, slot: f64, color: &'static str) -> Self {
        let widest = widest(labels.iter(), PLAIN).min(140.0);
        let names = match slot {
            slot if slot >= widest + 16.0 => Names::Across,
            slot if slot >= UPWARDS - 0.01 => Names::Upwards,
            _ => Names::Ends,
        };
        let (width, height) = match names {
            Names::Across => (widest + 10.0, 24.0),
            Names::Upwards => ((slot * 0.8).clamp(UPWARDS - 2.0, 22.0), widest + 10.0),
            Names::Ends => (slot * 0.6, 10.0),
        };
        Self {
            labels,
            x,
            names,
            top: 0.0,
            width,
            height,
            color,
        }
    }

    fn draw(&self, canvas: &mut Canvas) {
        for (label, x) in self.labels.iter().zip(&self.x) {
            let corner = (x - self.width / 2.0, self.top);
            canvas.rectangle(corner, (self.width, self.height), self.color, INK);
            let middle = (*x, self.top + self.height / 2.0);
            let name = fit(label, PLAIN, 140.0);
            match self.names {
                Names::Across => canvas.text(&name, middle, Anchor::Middle, PLAIN),
                Names::Upwards => canvas.text(&name, middle, Anchor::Middle, VERTICAL),
                Names::Ends => {}
            }
        }
        if self.names == Names::Ends {
            let mut boxes = self.labels.iter().zip(&self.x);
            let (first, last) = (boxes.clone().next(), boxes.next_back());
            for (end, side) in [(first, Anchor::Start), (last, Anchor::End)] {
                if let Some((label, x)) = end {
                    canvas.text(label, (*x, self.top - 10.0), side, QUIET);
                }
            }
        }
    }
}

/// The position of each switch: its layer, and its index within that.
struct Layers {
    of: Vec<(usize, usize)>,
    /// Switches of each layer from left to right, starting with the lowest layer.
    rows: Vec<Vec<usize>>,
}

impl NetworkFigure {
    fn neighbours(&self) -> Vec<Vec<usize>> {
        let mut all = vec![Vec::new(); self.switches.len()];
        for &(a, b) in &self.links {
            for (from, to) in [(a, b), (b, a)] {
                if !all[from].contains(&to) {
                    all[from].push(to);
                }
            }
        }
        all
    }

    /// Layers by the distance to the nearest switch with hosts; the switches of a chain form one layer, as do those of
    /// a ring if all have hosts.
    fn layers(&self) -> Layers {
        let neighbours = self.neighbours();
        let is_edge = |switch: usize| self.hosts.iter().any(|host| host.1 == switch);
        let rings = self.links.len() >= self.switches.len();
        let rows = match row(&neighbours) {
            Some(row) if !rings || (0..self.switches.len()).all(is_edge) => vec![row],
            _ => self.by_distance(&neighbours),
        };
        let mut of = vec![(0, 0); self.switches.len()];
        for (layer, row) in rows.iter().enumerate() {
            for (place, switch) in row.iter().enumerate() {
                of[*switch] = (layer, place);
            }
        }
        Layers { of, rows }
    }

    fn by_distance(&self, neighbours: &[Vec<usize>]) -> Vec<Vec<usize>> {
        let mut layer = vec![usize::MAX; self.switches.len()];
        let mut reached: Vec<usize> = self.hosts.iter().map(|host| host.1).collect();
        reached.sort_unstable();
        reached.dedup();
        for switch in &reached {
            layer[*switch] = 0;
        }
        let mut at = 0;
        while let Some(&switch) = reached.get(at) {
            at += 1;
            for &next in &neighbours[switch] {
                if layer[next] == usize::MAX {
                    layer[next] = layer[switch] + 1;
                    reached.push(next);
                }
            }
        }
        let mut rows: Vec<Vec<usize>> = Vec::new();
        for (switch, layer) in layer.iter().enumerate() {
            let layer = if *layer == usize::MAX { 0 } else { *layer };
            rows.resize(rows.len().max(layer + 1), Vec::new());
            rows[layer].push(switch);
        }
        // Each switch above its neighbours (Sugiyama et al., 1981: the barycentre method); ties keep their order.
        let mut place = vec![0.0; self.switches.len()];
        let places = |row: &[usize], place: &mut [f64]| {
            for (number, switch) in row.iter().enumerate() {
                place[*switch] = (number as f64 + 0.5) / row.len() as f64;
            }
        };
        if let Some(lowest) = rows.first() {
            places(lowest, &mut place);
        }
        for (upper, row) in rows.iter_mut().enumerate().skip(1) {
            let mean = |switch: usize| {
                let next = neighbours[switch].iter();
                let below: Vec<f64> = next
                    .filter(|next| layer[**next] + 1 == upper)
                    .map(|next| place[*next])
                    .collect();
                below.iter().sum::<f64>() / below.len().max(1) as f64
            };
            row.sort_by(|a, b| mean(*a).total_cmp(&mean(*b)));
            places(row, &mut place);
        }
        rows
    }

    /// Hosts as drawn: one box each, or one per switch; with the indices of their switches.
    fn boxes(&self) -> Vec<(String, usize)> {
        if self.hosts.len() <= MOST_HOSTS {
            return self.hosts.clone();
        }
        let mut by_switch: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
        for (name, switch) in &self.hosts {
            by_switch.entry(*switch).or_default().push(name);
        }
        let together = |(switch, names): (usize, Vec<&str>)| match names[..] {
            [] => (String::new(), switch),
            [name] => (name.to_owned(), switch),
            [first, .., last] => (format!("{first} … {last}"), switch),
        };
        by_switch.into_iter().map(together).collect()
    }

    /// The figure as the text of an SVG file, 800 pixels wide, or up to 2400 if there are many switches.
    pub fn to_svg(&self) -> String {
        let layers = self.layers();
        let boxes = self.boxes();
        let lowest = layers.rows.first().map_or(&[][..], Vec::as_slice);
        let below: Vec<Vec<&(String, usize)>> = lowest
            .iter()
            .map(|switch| boxes.iter().filter(|host| host.1 == *switch).collect())
            .collect();
        // Slots of the lowest row: one per host box. Switches without hosts reserve space for their names.
        let least = if boxes.len() == self.hosts.len() {
            2
        } else {
            1
        };
        let slots: Vec<usize> = below.iter().map(|hosts| hosts.len().max(least)).collect();
        let most = layers.rows.iter().map(Vec::len).max().unwrap_or(1);
        let most = slots.iter().sum::<usize>().max(most).max(1);
        let width = (APART * most as f64 + 20.0)
            .clamp(WIDTH, MOST_WIDTH)
            .round();
        let (left, inner) = (10.0, width - 20.0);

        let slot = inner / slots.iter().sum::<usize>().max(1) as f64;
        // Of each box its name, its x and that of its switch.
        let (mut hosts, mut lowest_x, mut used) = (Vec::new(), Vec::new(), 0);
        for (boxes, slots) in below.iter().zip(&slots) {
            let middle = |number: usize| left + (number as f64 + 0.5) * slot;
            let switch_x = (middle(used) + middle(used + slots - 1)) / 2.0;
            let shift = (slots - boxes.len()) as f64 * slot / 2.0;
            for (number, (name, _)) in boxes.iter().enumerate() {
                hosts.push((name, middle(used + number) + shift, switch_x));
            }
            lowest_x.push(switch_x);
            used += slots;
        }
        let names = hosts.iter().map(|(name, ..)| (*name).clone()).collect();
        let host_x = hosts.iter().map(|(_, x, _)| *x).collect();
        let mut hosts_row = Row::new(names, host_x, slot, WHITE);
        let mut rows = Vec::new();
        for (number, row) in layers.rows.iter().enumerate() {
            let names = row.iter().map(|switch| self.switches[*switch].clone());
            let even = |place| left + (place as f64 + 0.5) / row.len() as f64 * inner;
            let x: Vec<f64> = match number {
                0 => lowest_x.clone(),
                _ => (0..row.len()).map(even).collect(),
            };
            let between = x.windows(2).map(|pair| pair[1] - pair[0]);
            let slot = between.fold(inner, f64::min);
            rows.push(Row::new(names.collect(), x, slot, SWITCH));
        }
        hosts_row.top = self.place_rows(&layers, &mut rows) - GAP / 3.0;
        let height = (hosts_row.top + hosts_row.height + 10.0).round();
        let mut canvas = Canvas::new((width, height), &self.title);
        canvas.text(&self.title, (left, 16.0), Anchor::Start, BOLD);
        let beside = left + text_width(&self.title, BOLD) + 10.0;
        let note = fit(&self.note, PLAIN, width - beside - 4.0);
        canvas.text(&note, (beside, 16.0), Anchor::Start, QUIET);
        self.draw_links(&mut canvas, &layers, &rows, width);
        let bottom = rows.first().map_or(0.0, |row| row.top + row.height);
        for (name, x, switch_x) in hosts {
            let ends = [(switch_x, bottom), (x, hosts_row.top)];
            if self.failed_hosts.contains(name) {
                canvas.line(&ends, &FAILED);
            } else {
                canvas.path(&ends, LINK, 0.8);
            }
        }
        for row in rows.iter().chain([&hosts_row]) {
            row.draw(&mut canvas);
        }
        canvas.into_svg()
    }

    /// Places the rows below the title; returns the bottom of the last one.
    fn place_rows(&self, layers: &Layers, rows: &mut [Row]) -> f64 {
        let mut y = 30.0 + 14.0;
        let highest = rows.len().saturating_sub(1);
        for (number, row) in rows.iter_mut().enumerate().rev() {
            let mut links = self.links.iter();
            let goes_around = links.any(|(a, b)| {
                let ((layer, x), (other, x2)) = (layers.of[*a], layers.of[*b]);
                layer == number && other == number && x.abs_diff(x2) > 1
            });
            if goes_around && number == highest {
                y += ARCS;
            }
            row.top = y;
            y += row.height + GAP;
        }
        y
    }

    fn draw_links(&self, canvas: &mut Canvas, layers: &Layers, rows: &[Row], width: f64) {
        let thickness = if self.links.len() > 300 { 0.4 } else { 1.0 };
        let mut parallel: BTreeMap<(usize, usize), Vec<usize>> = BTreeMap::new();
        for (link, (a, b)) in self.links.iter().enumerate() {
            let between = parallel.entry((*a.min(b), *a.max(b)));
            between.or_default().push(link);
        }
        let mut labels = Vec::new();
        for ((a, b), links) in parallel {
            let mut ends = [layers.of[a], layers.of[b]];
            // The lower end first; in a row, that with the lower number.
            ends.sort_by_key(|(layer, _)| *layer);
            let [(layer, at), (other, to)] = ends;
            let (row, row2) = (&rows[layer], &rows[other]);
            let (x, x2) = (row.x[at], row2.x[to]);
            let middle = (links.len() - 1) as f64 / 2.0;
            for (number, link) in links.into_iter().enumerate() {
                let aside = (number as f64 - middle) * 4.0;
                let path = if layer != other {
                    vec![(x + aside, row.top), (x2 + aside, row2.top + row2.height)]
                } else if at.abs_diff(to) == 1 {
                    let y = row.top + row.height / 2.0 + aside;
                    vec![(x, y), (x2, y)]
                } else {
                    let rise = ARCS - 6.0 + aside;
                    let arc = |step: u32| {
                        let t = f64::from(step) / 24.0;
                        (x + (x2 - x) * t, row.top - 4.0 * t * (1.0 - t) * rise)
                    };
                    (0..=24).map(arc).collect()
                };
                let special = self.special.get(&link);
                if special.is_some_and(|special| special.failed) {
                    canvas.line(&path, &FAILED);
                } else {
                    canvas.path(&path, LINK, thickness);
                }
                if let Some(special) = special.filter(|special| !special.label.is_empty()) {
                    labels.push((special, label_at(&path, number)));
                }
            }
        }
        if labels.len() > MOST_LABELS {
            labels.retain(|(special, _)| special.failed);
        }
        labels.truncate(MOST_LABELS);
        for (special, (x, y)) in labels {
            let color = if special.failed { FAILED.color } else { GREY };
            let label = &special.label;
            let half = text_width(label, PLAIN) / 2.0 + 1.0;
            let margin = half + 3.0;
            let x = x.clamp(margin, (width - margin).max(margin));
            // A white background keeps lines out of the label.
            canvas.rectangle((x - half, y - 8.0), (2.0 * half, 16.0), WHITE, NONE);
            canvas.text(label, (x, y), Anchor::Middle, TextStyle { color, ..PLAIN });
        }
    }
}

/// Position of a link's label: nearer to the lower end, because links cross in the middle; labels of parallel links are
/// below each other.
fn label_at(path: &[(f64, f64)], number: usize) -> (f64, f64) {
    let down = number as f64 * 15.0;
    match path {
        [(x, y), (x2, y2)] => (x + (x2 - x) * 0.3, y + (y2 - y) * 0.3 + down),
        arc => {
            let (x, y) = arc[arc.len() / 2];
            (x, y + down)
        }
    }
}

/// The switches along a chain or ring, if none has more than two neighbours, from the first end or, without ends, from
/// the first switch.
fn row(neighbours: &[Vec<usize>]) -> Option<Vec<usize>> {
    if neighbours.iter().any(|next| next.len() > 2) {
        return None;
    }
    let mut row: Vec<usize> = Vec::new();
    let mut visited = vec![false; neighbours.len()];
    // Try the ends first, so that a chain is not started in its middle.
    let mut starts: Vec<usize> = (0..neighbours.len()).collect();
    starts.sort_by_key(|switch| neighbours[*switch].len() == 2);
    for start in starts {
        let mut next = Some(start).filter(|switch| !visited[*switch]);
        while let Some(switch) = next {
            visited[switch] = true;
            row.push(switch);
            next = neighbours[switch]
                .iter()
                .copied()
                .find(|next| !visited[*next]);
        }
    }
    Some(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row_of(links: &[(usize, usize)], switches: usize) -> Option<Vec<usize>> {
        let figure = NetworkFigure {
            switches: (0..switches).map(|n| n.to_string()).collect(),
            links: links.to_vec(),
            ..NetworkFigure::default()
        };
        row(&figure.neighbours())
    }

    #[test]
    fn rows_and_rings_are_walked_along() {
        assert_eq!(row_of(&[(2, 0), (0, 1), (1, 3)], 4), Some(vec![2, 0, 1, 3]));
        assert_eq!(row_of(&[(0, 1), (1, 2), (2, 0)], 3), Some(vec![0, 1, 2]));
        assert_eq!(row_of(&[], 2), Some(vec![0, 1]));
        assert_eq!(row_of(&[(0, 1), (0, 2), (0, 3)], 4), None);
    }

    #[test]
    fn layers_are_distances_to_hosts() {
        // Two pods of two switches; spine i connects the i-th switches of both.
        let figure = NetworkFigure {
            switches: (0..7).map(|n| format!("s{n}")).collect(),
            hosts: vec![("a".to_owned(), 0), ("b".to_owned(), 1)],
            links: vec![
                (0, 2),
                (0, 3),
                (1, 4),
                (1, 5),
                (2, 6),
                (3, 6),
                (4, 6),
                (5, 6),
            ],
            ..NetworkFigure::default()
        };
        let rows = figure.layers().rows;
        assert_eq!(rows, [vec![0, 1], vec![2, 3, 4, 5], vec![6]]);
        let ring = NetworkFigure {
            switches: figure.switches[..4].to_vec(),
            links: vec![(0, 2), (2, 1), (1, 3), (3, 0)],
            ..figure
        };
        assert_eq!(ring.layers().rows, [vec![0, 1], vec![2, 3]]);
    }

    #[test]
    fn many_hosts_are_one_box_per_switch() {
        let hosts = |count: usize| NetworkFigure {
            switches: vec!["left".to_owned(), "right".to_owned()],
            hosts: (0..count)
                .map(|n| (format!("h{n}"), usize::from(n == 0)))
                .collect(),
            links: vec![(0, 1)],
            ..NetworkFigure::default()
        };
        assert_eq!(hosts(48).boxes().len(), 48);
        let boxes = hosts(49).boxes();
        assert_eq!(boxes, [("h1 … h48".to_owned(), 0), ("h0".to_owned(), 1)]);
    }
}
