//! The same random calls on dioxide and on the kernel's ext4: same answers, same trees, same number of
//! free inodes. Then each goes on with what the other wrote.

use crate::calls::{self, Call, Dioxide, Generator};
use crate::kinds::kinds;
use crate::linux;
use crate::random_calls::open_fs;
use crate::tree::{Answer, Tree};
use crate::view::{self, View};
use dioxide::Fs;
use dioxide_testkit::{Image, ImageBuilder, Mount, dumpe2fs, e2fsck_clean, need_root, seeds};

/// What one side made of the image.
struct Side {
    answers: Vec<Answer>,
    view: View,
    free_inodes: u64,
}

fn free_inodes(image: &Image) -> u64 {
    let text = dumpe2fs(image.path());
    let mut rows = text.lines();
    let row = rows.find_map(|row| row.strip_prefix("Free inodes:"));
    row.expect("it is there").trim().parse().expect("a number")
}

fn by_dioxide(image: &Image, calls: &[Call]) -> Side {
    let mut side = Dioxide::new(open_fs(image));
    let answers = calls.iter().map(|call| side.run(call)).collect();
    let view = view::of_dioxide(&side.fs);
    side.fs.close().expect("a clean end");
    e2fsck_clean(image.path());
    Side {
        answers,
        view,
        free_inodes: free_inodes(image),
    }
}

fn by_kernel(image: &Image, calls: &[Call]) -> Side {
    // A look at the tree is to change nothing of it.
    let mount = Mount::ext4(image.path(), "noatime");
    let answers = linux::run_all(mount.path(), calls);
    let view = linux::view(mount.path());
    mount.unmount();
    e2fsck_clean(image.path());
    Side {
        answers,
        view,
        free_inodes: free_inodes(image),
    }
}

fn assert_same_answers(what: &str, calls: &[Call], ours: &[Answer], theirs: &[Answer]) {
    let differs = (0..calls.len()).find(|&at| ours[at] != theirs[at]);
    if let Some(at) = differs {
        let each = |at| format!("{:?}: {:?} and {:?}", calls[at], ours[at], theirs[at]);
        let last: Vec<String> = (at.saturating_sub(30)..=at).map(each).collect();
        panic!("{what}, after {at} calls:\n{}", last.join("\n"));
    }
}

struct Bed {
    generator: Generator,
    tree: Tree,
}

impl Bed {
    /// The next calls, which leave nothing open, and the model's answers.
    fn plan(&mut self, steps: usize) -> (Vec<Call>, Vec<Answer>) {
        let (mut calls, mut answers) = (Vec::new(), Vec::new());
        let mut add = |call: Call, tree: &mut Tree| {
            answers.push(calls::apply(&call, tree));
            calls.push(call);
        };
        for _ in 0..steps {
            let call = self.generator.next(&self.tree);
            add(call, &mut self.tree);
        }
        for slot in self.tree.open.keys().copied().collect::<Vec<_>>() {
            add(Call::Close { slot }, &mut self.tree);
        }
        (calls, answers)
    }

    fn compare(&mut self, what: &str, ours: (&Image, bool), theirs: (&Image, bool), steps: usize) {
        let (plan, expected) = self.plan(steps);
        let run = |(image, kernel): (&Image, bool)| match kernel {
            true => by_kernel(image, &plan),
            false => by_dioxide(image, &plan),
        };
        // The kernel first: it is right.
        let theirs = run(theirs);
        assert_same_answers(
            &format!("{what}: model, kernel"),
            &plan,
            &expected,
            &theirs.answers,
        );
        let ours = run(ours);
        assert_same_answers(
            &format!("{what}: dioxide, kernel"),
            &plan,
            &ours.answers,
            &theirs.answers,
        );
        view::assert_same(
            &format!("{what}: dioxide, kernel"),
            &ours.view,
            &theirs.view,
        );
        assert_eq!(ours.free_inodes, theirs.free_inodes, "{what}: free inodes");
    }
}

fn check(name: &str, builder: ImageBuilder, seed: u64, many: u64, steps: usize) {
    let first = builder.build();
    let second = first.copy();
    let fs: Fs = open_fs(&first);
    let (block, tree) = (u64::from(fs.block_size()), Tree::of(&fs));
    fs.close().expect("a clean end");
    let mut bed = Bed {
        generator: Generator::new(seed, block, many),
        tree,
    };
    // Where entries have no type, Linux leaves in those of a new directory what its block had there, in memory, as one
    // of attributes or of a symlink; e2fsck objects.
    bed.generator.blocks = name != "no filetype";
    let what = format!("{name}, seed {seed}");
    bed.compare(&what, (&first, false), (&second, true), steps);
    // Each goes on with what the other wrote.
    let what = what + ", the other's image";
    bed.compare(&what, (&second, false), (&first, true), steps);
}

#[test]
fn random_calls_leave_what_the_kernel_leaves() {
    need_root!();
    for (name, builder) in kinds() {
        for seed in seeds(2) {
            check(name, builder.clone(), 1000 + seed, 0, 400);
        }
    }
}

#[test]
fn random_calls_in_large_directories_leave_what_the_kernel_leaves() {
    need_root!();
    let mut kinds = kinds();
    // Here blocks of directories are new ones' again: see `check`.
    kinds.retain(|(name, _)| *name != "no filetype");
    for (name, builder) in kinds {
        for seed in seeds(1) {
            check(name, builder.clone(), 2000 + seed, 1500, 1500);
        }
    }
}
