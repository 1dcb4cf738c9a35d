//! A request to the method that serves it, and what it returned to the bytes of the reply.

use crate::call::Call;
use crate::errno::Errno;
use crate::filesystem::Filesystem;
use crate::reply::{
    DirectoryPlusReply, DirectoryReply, ReplyBuffer, encode_attr_reply, encode_entry, encode_ioctl,
    encode_lock, encode_opened, encode_statfs, encode_statx,
};
use crate::request::{Operation, forgets};
use crate::wire;

/// Most bytes that a COPY_FILE_RANGE may answer: its reply has 32 bits, and the kernel wants whole
/// pages.
const NARROW_COPY_BYTES_MAX: u64 = 0xffff_f000;

/// Serves `operation`; the reply is in `reply` afterwards, unless it is an error.
pub(crate) fn dispatch<F: Filesystem>(
    filesystem: &F,
    call: &mut Call<'_, F::Span>,
    operation: Operation<'_>,
    reply: &mut ReplyBuffer<'_>,
) -> Result<(), Errno> {
    match operation {
        Operation::Lookup { name } => reply.put(&encode_entry(&filesystem.lookup(call, name)?)),
        Operation::Forget { count } => {
            let node = call.request.node;
            filesystem.forget(call, node, count);
            Ok(())
        }
        Operation::BatchForget { list } => {
            for (node, count) in forgets(list) {
                filesystem.forget(call, node, count);
            }
            Ok(())
        }
        Operation::Getattr(arguments) => {
            reply.put(&encode_attr_reply(&filesystem.getattr(call, arguments)?))
        }
        Operation::Statx(arguments) => {
            reply.put(&encode_statx(&filesystem.statx(call, arguments)?))
        }
        Operation::Setattr(change) => {
            reply.put(&encode_attr_reply(&filesystem.setattr(call, change)?))
        }
        Operation::Readlink => reply.put_bytes(&filesystem.readlink(call)?),
        Operation::Symlink { name, target } => {
            reply.put(&encode_entry(&filesystem.symlink(call, name, target)?))
        }
        Operation::Mknod { name, make } => {
            reply.put(&encode_entry(&filesystem.mknod(call, name, make)?))
        }
        Operation::Mkdir { name, make } => {
            reply.put(&encode_entry(&filesystem.mkdir(call, name, make)?))
        }
        Operation::Unlink { name } => filesystem.unlink(call, name),
        Operation::Rmdir { name } => filesystem.rmdir(call, name),
        Operation::Rename(rename) => filesystem.rename(call, rename),
        Operation::Link { node, name } => {
            reply.put(&encode_entry(&filesystem.link(call, node, name)?))
        }
        Operation::Open(open) => reply.put(&encode_opened(&filesystem.open(call, open)?)),
        Operation::Create { name, make, open } => {
            let (entry, opened) = filesystem.create(call, name, make, open)?;
            reply.put(&encode_entry(&entry))?;
            reply.put(&encode_opened(&opened))
        }
        Operation::Tmpfile { make, open } => {
            let (entry, opened) = filesystem.tmpfile(call, make, open)?;
            reply.put(&encode_entry(&entry))?;
            reply.put(&encode_opened(&opened))
        }
        Operation::Read { read, len_bytes } => {
            let room = reply.room(len_bytes as usize);
            let read_bytes = filesystem.read(call, read, room)?.min(room.len());
            reply.filled(read_bytes);
            Ok(())
        }
        Operation::Write(write) => {
            let written = filesystem.write(call, write)?;
            reply.put(&wire::WriteOut {
                size: written.0,
                padding: 0,
            })
        }
        Operation::Flush { handle, owner } => filesystem.flush(call, handle, owner),
        Operation::Release(release) => filesystem.release(call, release),
        Operation::Fsync { handle, data_only } => filesystem.fsync(call, handle, data_only),
        Operation::Setxattr(set) => filesystem.setxattr(call, set),
        Operation::Getxattr {
            name,
            capacity_bytes,
        } => reply.put_sized(&filesystem.getxattr(call, name)?, capacity_bytes),
        Operation::Listxattr { capacity_bytes } => {
            reply.put_sized(&filesystem.listxattr(call)?, capacity_bytes)
        }
        Operation::Removexattr { name } => filesystem.removexattr(call, name),
        Operation::Opendir(open) => reply.put(&encode_opened(&filesystem.opendir(call, open)?)),
        Operation::Readdir {
            handle,
            offset,
            capacity_bytes,
        } => {
            let mut listing = DirectoryReply::new(reply, capacity_bytes);
            filesystem.readdir(call, handle, offset, &mut listing)
        }
        Operation::Readdirplus {
            handle,
            offset,
            capacity_bytes,
        } => {
            let mut listing = DirectoryPlusReply::new(reply, capacity_bytes);
            filesystem.readdirplus(call, handle, offset, &mut listing)
        }
        Operation::Releasedir(release) => filesystem.releasedir(call, release),
        Operation::Fsyncdir { handle, data_only } => filesystem.fsyncdir(call, handle, data_only),
        Operation::Getlk(lock) => reply.put(&encode_lock(&filesystem.getlk(call, lock)?)),
        Operation::Setlk(lock) => filesystem.setlk(call, lock),
        Operation::Setlkw(lock) => filesystem.setlkw(call, lock),
        Operation::Access { mask } => filesystem.access(call, mask),
        Operation::Ioctl(ioctl) => {
            let capacity_bytes = ioctl.out_bytes_max as usize;
            let answer = filesystem.ioctl(call, ioctl)?;
            if answer.data.len() > capacity_bytes {
                return Err(Errno::ERANGE);
            }
            reply.put(&encode_ioctl(&answer))?;
            reply.put_bytes(&answer.data)
        }
        Operation::Fallocate(range) => filesystem.fallocate(call, range),
        Operation::Lseek {
            handle,
            offset,
            whence,
        } => {
            let offset = filesystem.lseek(call, handle, offset, whence)?;
            reply.put(&wire::LseekOut { offset })
        }
        Operation::CopyFileRange { mut range, is_wide } => {
            if is_wide {
                let bytes_copied = filesystem.copy_file_range(call, range)?;
                return reply.put(&wire::CopyFileRangeOut { bytes_copied });
            }
            range.len_bytes = range.len_bytes.min(NARROW_COPY_BYTES_MAX);
            let copied = filesystem.copy_file_range(call, range)?;
            reply.put(&wire::WriteOut {
                size: copied.min(NARROW_COPY_BYTES_MAX) as u32,
                padding: 0,
            })
        }
        Operation::Statfs => reply.put(&encode_statfs(&filesystem.statfs(call)?)),
        Operation::Syncfs => filesystem.syncfs(call),
        Operation::Destroy => {
            filesystem.destroy(call);
            Ok(())
        }
        // The transport serves it; it never gets here.
        Operation::Interrupt { .. } => Err(Errno::ENOSYS),
    }
}
