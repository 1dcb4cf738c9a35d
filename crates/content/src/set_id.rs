//! The set-id bits of a mode, and when they go.

pub(crate) const SETUID: u32 = 0o4000;
pub(crate) const SETGID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o0010;

/// The bits of `mode` that go when the file gets another owner, or new content from somebody
/// without a privilege. Without the group's right to execute, setgid gives nobody anything, and
/// stays as in Linux.
pub(crate) fn set_id_bits(mode: u32) -> u32 {
    match mode & GROUP_EXECUTE {
        0 => mode & SETUID,
        _ => mode & (SETUID | SETGID),
    }
}

#[cfg(test)]
mod tests {
    use super::set_id_bits;

    #[test]
    fn setgid_goes_only_where_the_group_may_execute() {
        let modes = [0o6755, 0o6745, 0o4644, 0o2711, 0o2701, 0o1777, 0o755];
        assert_eq!(
            modes.map(set_id_bits),
            [0o6000, 0o4000, 0o4000, 0o2000, 0, 0, 0]
        );
    }
}
