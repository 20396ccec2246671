//! The device that filesystems are made on in turn, and the one that is mounted.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use strandfs_options::show_size;

use super::device::{check_claims, check_unused};
use super::plan::{BLOCK, Backing};
use super::recipe::Recipe;
use crate::error::BenchError;
use crate::loop_image::{Image, LoopDevice};
use crate::pattern::Pattern;
use crate::scratch::Scratch;
use crate::storage::Storage;
use crate::tool;

/// How long a mount may stay busy: indexers and the like look at new ones.
const PATIENCE: Duration = Duration::from_secs(10);
const TICK: Duration = Duration::from_millis(50);

/// A device to make filesystems on. When dropped nothing is mounted, attached or left of it; a
/// named device loses the signature of the last filesystem.
pub struct TestDevice {
    // In the order in which they have to go.
    mounted: Option<Mounted>,
    made: bool,
    path: PathBuf,
    name: String,
    attached: Option<LoopDevice>,
    image: Option<ImageFile>,
    /// Of the image.
    bytes: u64,
    mountpoint: PathBuf,
    _scratch: Scratch,
}

/// An image that was made for the run. Removed when dropped.
struct ImageFile(Image);

/// What is mounted now.
struct Mounted {
    mountpoint: PathBuf,
}

impl TestDevice {
    /// Makes and attaches an image of `bytes`, or checks that a named device has as many and may be
    /// overwritten. `directory` gets the mountpoint and, unless it is to be elsewhere, the image.
    ///
    /// # Errors
    /// No room, no loop devices, no right; [`BenchError::Usage`] for a device or a file that must
    /// not be touched; [`BenchError::Interrupted`].
    pub fn prepare(
        place: &Backing,
        bytes: u64,
        directory: &Path,
        pattern: &mut Pattern,
        stop: &AtomicBool,
    ) -> Result<Self, BenchError> {
        let scratch = Scratch::new(directory)?;
        let mountpoint = scratch.dir("mounted")?;
        let image = match place {
            Backing::Device(path) => {
                check_unused(path, bytes)?;
                None
            }
            Backing::Image => Some(scratch.path().join("image")),
            Backing::File(path) => Some(path.clone()),
        };
        if let Some(path) = &image {
            // Where it was asked to be, not the private directory there.
            let place = match place {
                Backing::File(_) => path.parent().filter(|it| *it != Path::new("")),
                _ => Some(directory),
            };
            let place = place.unwrap_or(Path::new("."));
            check_room(place, &Storage::of(place)?, bytes)?;
        }
        let image = match image {
            Some(path) => Some(ImageFile::write(path, bytes, pattern, stop)?),
            None => None,
        };
        let attached = match &image {
            Some(image) => Some(image.0.attach()?),
            None => None,
        };
        let path = match (place, &attached) {
            (Backing::Device(path), _) => path.clone(),
            (_, Some(device)) => device.path().to_path_buf(),
            (_, None) => return Err(BenchError::Usage("nowhere to make it".to_owned())),
        };
        // A name of udev's is a link to the kernel's.
        let real = fs::canonicalize(&path).map_err(BenchError::io("resolving", &path))?;
        let name = real.file_name().unwrap_or_default().to_string_lossy();
        Ok(Self {
            mounted: None,
            made: false,
            path,
            name: name.into_owned(),
            attached,
            image,
            bytes,
            mountpoint,
            _scratch: scratch,
        })
    }

    /// The name of the device in /proc/diskstats.
    pub fn device_name(&self) -> &str {
        &self.name
    }

    /// Where it is.
    pub fn device_path(&self) -> &Path {
        &self.path
    }

    /// Where the filesystem is mounted.
    pub fn root(&self) -> &Path {
        &self.mountpoint
    }

    /// Whether reads of the device may come from the page cache of the filesystem below it.
    pub fn is_cached_below(&self) -> bool {
        self.attached.as_ref().is_some_and(|it| !it.is_direct())
    }

    /// The commands of [`TestDevice::make`], as one would type them.
    pub fn commands(&self, recipe: &Recipe) -> Vec<String> {
        let device = self.path.display();
        let options = match recipe.mount.as_str() {
            "" => String::new(),
            given => format!(" -o {given}"),
        };
        vec![
            format!("{} {device}", recipe.mkfs),
            format!(
                "mount -t {}{options} {device} {}",
                recipe.kind,
                self.mountpoint.display()
            ),
        ]
    }

    /// Makes the filesystem anew and mounts it.
    ///
    /// # Errors
    /// [`BenchError::Tool`] with what mkfs or mount said.
    pub fn make(&mut self, recipe: &Recipe) -> Result<(), BenchError> {
        self.unmount()?;
        check_claims(&self.path)?;
        let words = recipe.mkfs_words();
        let Some((program, arguments)) = words.split_first() else {
            return Err(BenchError::Usage(format!("{} has no mkfs", recipe.name)));
        };
        self.made = true;
        let arguments = arguments.iter().map(OsStr::new);
        tool::run(program, arguments.chain([self.path.as_os_str()]))?;
        if let Some(image) = &self.image {
            image.0.fill_holes(self.bytes)?;
        }
        self.mount(recipe)
    }

    /// Unmounts and mounts again: nothing of the filesystem is in any cache then.
    ///
    /// # Errors
    /// Those of umount(2) and mount(8).
    pub fn remount(&mut self, recipe: &Recipe) -> Result<(), BenchError> {
        self.unmount()?;
        if let Some(image) = self.image.as_ref().filter(|_| self.is_cached_below()) {
            image.0.forget()?;
        }
        self.mount(recipe)
    }

    fn mount(&mut self, recipe: &Recipe) -> Result<(), BenchError> {
        let mut arguments = vec![OsStr::new("-t"), OsStr::new(&recipe.kind)];
        if !recipe.mount.is_empty() {
            arguments.extend([OsStr::new("-o"), OsStr::new(&recipe.mount)]);
        }
        arguments.extend([self.path.as_os_str(), self.mountpoint.as_os_str()]);
        tool::run("mount", arguments)?;
        self.mounted = Some(Mounted {
            mountpoint: self.mountpoint.clone(),
        });
        Ok(())
    }

    fn unmount(&mut self) -> Result<(), BenchError> {
        match self.mounted.take() {
            Some(mounted) => mounted.end(),
            None => Ok(()),
        }
    }
}

impl ImageFile {
    fn write(
        path: PathBuf,
        bytes: u64,
        pattern: &mut Pattern,
        stop: &AtomicBool,
    ) -> Result<Self, BenchError> {
        if path.symlink_metadata().is_ok() {
            return Err(BenchError::Usage(format!(
                "{} is there already, and an image is made anew and removed: give another name",
                path.display()
            )));
        }
        Image::write(&path, bytes, pattern.block(BLOCK), stop).map(Self)
    }
}

impl Drop for ImageFile {
    fn drop(&mut self) {
        // Without it the place is lost until somebody looks: they are told where.
        if let Err(error) = self.0.remove() {
            eprintln!("strandfs: {error}");
        }
    }
}

/// Refuses images that do not fit, before anything is written.
///
/// # Errors
/// [`BenchError::Usage`] with both sizes.
pub fn check_room(directory: &Path, below: &Storage, bytes: u64) -> Result<(), BenchError> {
    if below.free_bytes >= bytes {
        return Ok(());
    }
    Err(BenchError::Usage(format!(
        "{} has {} free, and {} are needed: give a smaller size or another place",
        directory.display(),
        show_size(below.free_bytes),
        show_size(bytes)
    )))
}

impl Mounted {
    /// Waits for those who still look at it.
    fn end(&self) -> Result<(), BenchError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match unmount(&self.mountpoint, UnmountFlags::NOFOLLOW) {
                Err(Errno::BUSY) if Instant::now() < deadline => thread::sleep(TICK),
                other => return other.map_err(BenchError::io("unmounting", &self.mountpoint)),
            }
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Nothing is there any more, unless `end` failed: then at least out of sight.
        let _ = unmount(
            &self.mountpoint,
            UnmountFlags::DETACH | UnmountFlags::NOFOLLOW,
        );
    }
}

impl Drop for TestDevice {
    fn drop(&mut self) {
        let ended = self.unmount();
        if let Err(error) = &ended {
            eprintln!("strandfs: {error}");
        }
        // Blank again, so that the next run is not refused for what this one left.
        if self.made && self.attached.is_none() && ended.is_ok() {
            let wiped = tool::run("wipefs", [OsStr::new("-a"), self.path.as_os_str()]);
            if let Err(error) = wiped {
                eprintln!(
                    "strandfs: {} still holds a filesystem: {error}",
                    self.path.display()
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    /// Root made an image in a user's directory; the user put a link to another file in its place, and that
    /// got the filesystem.
    #[test]
    fn an_image_that_is_exchanged_while_it_is_written_leads_to_no_other_file() {
        let has = |program: &str| tool::find(program).is_some();
        let is_root = rustix::process::geteuid().is_root();
        if !is_root || strandfs_volume::loop_device::check().is_err() || !has("mkfs.ext4") {
            return;
        }
        const BYTES: u64 = 64 << 20;
        let top = tempfile::tempdir().unwrap();
        let (home, victim) = (top.path().join("home"), top.path().join("victim"));
        fs::create_dir(&home).unwrap();
        fs::write(&victim, "root's").unwrap();
        fs::File::options()
            .write(true)
            .open(&victim)
            .unwrap()
            .set_len(BYTES)
            .unwrap();
        let image = home.join("img");
        let ended = AtomicBool::new(false);
        let recipe = Recipe {
            name: "ext4".to_owned(),
            kind: "ext4".to_owned(),
            mkfs: "mkfs.ext4 -q".to_owned(),
            mount: String::new(),
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                while !image.exists() && !ended.load(Ordering::Relaxed) {
                    thread::yield_now();
                }
                let _ = fs::rename(&image, home.join("gone"));
                let _ = std::os::unix::fs::symlink(&victim, &image);
            });
            let made = TestDevice::prepare(
                &Backing::File(image.clone()),
                BYTES,
                top.path(),
                &mut Pattern::new(BLOCK, 1),
                &AtomicBool::new(false),
            );
            ended.store(true, Ordering::Relaxed);
            let mut device = made.unwrap();
            device.make(&recipe).unwrap();
            fs::write(device.root().join("file"), "measured").unwrap();
        });
        let found = fs::read(&victim).unwrap();
        assert!(found.starts_with(b"root's") && found[6..].iter().all(|it| *it == 0));
        assert!(victim.exists() && image.is_symlink());
        let devices = strandfs_volume::loop_device::on(&victim);
        assert_eq!(devices, [""; 0].map(PathBuf::from));
    }
}
