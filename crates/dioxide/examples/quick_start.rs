//! Blocking calls and a queue, on an image `disk.img` that has a file `/var/db/data`. The README shows the body of `main`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    use dioxide::{Buf, Fs, MountOptions, OpenOptions, QueueOptions};

    let fs = Fs::open("disk.img", &MountOptions::new())?;
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&fs, "/var/db/data")?;

    let mut block = vec![0; 4096];
    file.read_at(&mut block, 8192)?; // blocking, from any number of threads
    file.write_at(&block[..512], 512)?; // an unaligned overwrite: the lock stays shared

    file.write_at(b"any offset", file.len())?; // the file grows
    file.sync_data()?; // durable, once that returned Ok

    let mut queue = fs.queue(&QueueOptions::default())?; // one thread's asynchronous requests
    queue
        .read(&file, 0, Buf::zeroed(4096), 7)
        .expect("there is room"); // a buffer moves in …
    let mut done = Vec::new();
    queue.wait(1, &mut done)?;
    for one in done.drain(..) {
        let read = one.result?; // each request has an outcome of its own
        println!("{}: {:?}", one.tag, &one.buf[..read]); // … and comes back with it
    }
    queue.sync_data(&file, 8).expect("there is room"); // of what was reaped before
    queue.wait(1, &mut done)?;
    for one in done.drain(..) {
        one.result?; // durable, if this is Ok
    }

    drop((queue, file));
    fs.close()?; // clean, as by umount
    Ok(())
}
