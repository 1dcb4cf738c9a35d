//! Circles in a directed graph.

/// The nodes of some circle, in its order; `None` if there is none. Nodes are numbered below
/// `count`.
pub(super) fn find_circle(count: usize, edges: &[(usize, usize)]) -> Option<Vec<usize>> {
    let mut to: Vec<Vec<usize>> = vec![Vec::new(); count];
    for &(from, target) in edges {
        to[from].push(target);
    }
    #[derive(Clone, Copy, PartialEq)]
    enum Mark {
        New,
        OnPath,
        Done,
    }
    let mut marks = vec![Mark::New; count];
    for start in 0..count {
        if marks[start] != Mark::New {
            continue;
        }
        // A path from `start`, with the number of edges of each node that were followed.
        let mut path = vec![(start, 0)];
        marks[start] = Mark::OnPath;
        while let Some((node, followed)) = path.last_mut() {
            let node = *node;
            let Some(&next) = to[node].get(*followed) else {
                marks[node] = Mark::Done;
                path.pop();
                continue;
            };
            *followed += 1;
            match marks[next] {
                Mark::New => {
                    marks[next] = Mark::OnPath;
                    path.push((next, 0));
                }
                Mark::OnPath => {
                    let nodes = path.iter().map(|(node, _)| *node);
                    return Some(nodes.skip_while(|node| *node != next).collect());
                }
                Mark::Done => {}
            }
        }
    }
    None
}
