//! One thread of a mount: a request in, a reply out.

use std::sync::Arc;

use millpond_fuse_wire::abi::InitFlags;
use millpond_fuse_wire::{Device, Received, Reply, Request, RequestBuffer};

use crate::fs::Fs;

/// Serves requests until the mount is gone.
pub(crate) fn serve(fs: &Arc<Fs>, device: &Device, (max_write, granted): (u32, InitFlags)) {
    let mut buffer = RequestBuffer::new(max_write);
    let mut scratch = Vec::with_capacity(max_write as usize);
    loop {
        let bytes = match device.read(&mut buffer) {
            Ok(Received::Request(bytes)) => bytes,
            Ok(Received::Unmounted | Received::Aborted) => return,
            Err(error) => {
                tracing::error!("reading requests of the kernel: {error}");
                return;
            }
        };
        match Request::decode(bytes, granted) {
            Ok(request) => {
                let to = request.reply_to();
                fs.dispatch(&request, &mut scratch, &mut |reply| send(device, to, &reply));
            }
            Err(error) => {
                tracing::error!("{error}");
                if let Some((to, errno)) = error.answer() {
                    send(device, to, &Reply::Error(errno));
                }
            }
        }
    }
}

fn send(device: &Device, to: millpond_fuse_wire::ReplyTo, reply: &Reply<'_>) {
    if let Err(error) = device.reply(to, reply) {
        tracing::error!("answering the kernel: {error}");
    }
}
