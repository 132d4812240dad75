//! Which lines lead where.
//!
//! Lines have numbers: from hosts to edge switches, back, from edge switches to aggregation, back,
//! from aggregation to the core, back. Each of the six blocks has a line for every host, as each
//! layer of the tree has the capacity of all hosts.

/// The lines that a packet takes, in their order: at most six.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Path {
    lines: [u32; 6],
    length: usize,
}

impl Path {
    fn new(lines: &[usize]) -> Self {
        let mut path = Self { length: lines.len(), ..Self::default() };
        for (to, from) in path.lines.iter_mut().zip(lines) {
            // CAST: a tree of hosts that fit into memory has fewer lines.
            *to = *from as u32;
        }
        path
    }

    /// The line with this place on the path; `None` behind its end.
    pub(super) fn line(&self, place: usize) -> Option<usize> {
        self.lines[..self.length].get(place).map(|line| *line as usize)
    }

    /// All of them.
    pub(super) fn lines(&self) -> Vec<usize> {
        (0..self.length).map_while(|place| self.line(place)).collect()
    }
}

/// The lines of a tree of switches with `k` ports.
#[derive(Debug)]
pub(super) struct Topology {
    half: usize,
    hosts: usize,
}

/// The blocks of lines.
const TO_EDGE: usize = 0;
const TO_HOST: usize = 1;
const TO_AGGREGATION: usize = 2;
const FROM_AGGREGATION: usize = 3;
const TO_CORE: usize = 4;
const FROM_CORE: usize = 5;

impl Topology {
    pub(super) fn new(k: usize) -> Self {
        assert!(k > 0 && k.is_multiple_of(2), "switches have an even number of ports");
        Self { half: k / 2, hosts: k * k * k / 4 }
    }

    /// The number of lines.
    pub(super) fn lines(&self) -> usize {
        6 * self.hosts
    }

    /// The line from a host to its switch. Its number is the host's.
    pub(super) fn up(&self, host: usize) -> usize {
        TO_EDGE * self.hosts + host
    }

    /// The line in the other direction.
    pub(super) fn reverse(&self, line: usize) -> usize {
        let (block, place) = (line / self.hosts, line % self.hosts);
        (block ^ 1) * self.hosts + place
    }

    /// The lines from one host to another, of which `flow` chooses among those that are `usable`;
    /// as if all were, if none is.
    pub(super) fn path(
        &self,
        from: usize,
        to: usize,
        flow: u64,
        usable: impl Fn(usize) -> bool,
    ) -> Path {
        let mut paths: Vec<Vec<usize>> = self.paths(from, to);
        let good = |path: &Vec<usize>| path.iter().all(|line| usable(*line));
        if paths.iter().any(good) {
            paths.retain(good);
        }
        // CAST: below the number of paths.
        Path::new(&paths[(flow % paths.len() as u64) as usize])
    }

    /// Every shortest path.
    fn paths(&self, from: usize, to: usize) -> Vec<Vec<usize>> {
        let Self { half, hosts } = *self;
        let edge = |host: usize| host / half;
        let pod = |host: usize| host / (half * half);
        let line = |block: usize, place: usize| block * hosts + place;
        let (up, down) = (self.up(from), line(TO_HOST, to));
        if edge(from) == edge(to) {
            return vec![vec![up, down]];
        }
        // An edge switch has a line to each aggregation switch of its pod.
        let at_edge = |host: usize, aggregation: usize| edge(host) * half + aggregation;
        let aggregations = 0..half;
        if pod(from) == pod(to) {
            let through = |aggregation| {
                let there = line(TO_AGGREGATION, at_edge(from, aggregation));
                vec![up, there, line(FROM_AGGREGATION, at_edge(to, aggregation)), down]
            };
            return aggregations.map(through).collect();
        }
        // An aggregation switch has lines to `half` core switches, which have one to each pod.
        let at_aggregation = |host: usize, aggregation: usize, core: usize| {
            (pod(host) * half + aggregation) * half + core
        };
        let through = |aggregation, core| {
            vec![
                up,
                line(TO_AGGREGATION, at_edge(from, aggregation)),
                line(TO_CORE, at_aggregation(from, aggregation, core)),
                line(FROM_CORE, at_aggregation(to, aggregation, core)),
                line(FROM_AGGREGATION, at_edge(to, aggregation)),
                down,
            ]
        };
        aggregations
            .flat_map(|aggregation| (0..half).map(move |core| (aggregation, core)))
            .map(|(aggregation, core)| through(aggregation, core))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_as_many_paths_as_a_fat_tree_has() {
        let tree = Topology::new(4);
        assert_eq!(tree.lines(), 6 * 16);
        assert_eq!(tree.paths(0, 1).len(), 1, "one switch");
        assert_eq!(tree.paths(0, 2).len(), 2, "one pod");
        assert_eq!(tree.paths(0, 4).len(), 4, "through the core");
        assert!(tree.paths(0, 15).iter().all(|path| path.len() == 6));
    }

    #[test]
    fn the_way_back_is_the_way_there_reversed() {
        let tree = Topology::new(6);
        for (from, to) in [(0, 1), (0, 4), (3, 50), (53, 0)] {
            let there = tree.paths(from, to);
            for back in tree.paths(to, from) {
                let reversed = back.iter().rev().map(|line| tree.reverse(*line)).collect();
                assert!(there.contains(&reversed));
            }
        }
    }

    #[test]
    fn a_path_avoids_what_is_not_usable_while_there_is_another() {
        let tree = Topology::new(4);
        let cut = tree.path(0, 15, 7, |_| true).lines()[2];
        assert!(!tree.path(0, 15, 7, |line| line != cut).lines().contains(&cut));
        assert_eq!(tree.path(0, 15, 7, |_| false).lines().len(), 6);
    }
}
