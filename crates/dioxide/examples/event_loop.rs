//! A queue in an event loop, on an image `disk.img` that has a file `/var/db/data` of 64 KiB or more. `poll` waits for the queue only;
//! `epoll` or an `AsyncFd` would wait for sockets as well.

use dioxide::{Buf, Fs, MountOptions, OpenOptions, QueueOptions};
use rustix::event::{PollFd, PollFlags, poll};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let fs = Fs::open("disk.img", &MountOptions::new())?;
    let file = OpenOptions::new().read(true).open(&fs, "/var/db/data")?;
    let mut queue = fs.queue(&QueueOptions::default())?;
    let descriptor = queue.event_fd()?;

    for tag in 0..16 {
        queue
            .read(&file, tag * 4096, Buf::zeroed(4096), tag)
            .expect("there is room");
    }
    let mut done = Vec::new();
    loop {
        queue.wait(0, &mut done)?; // reaps and submits, and waits for nothing
        for one in done.drain(..) {
            println!("{}: {} bytes", one.tag, one.result?); // here new requests could be pushed
        }
        if queue.outstanding() == 0 {
            break;
        }
        match poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }

    drop((queue, file));
    fs.close()?;
    Ok(())
}
