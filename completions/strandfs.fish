# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_strandfs_global_optspecs
    string join \n h/help V/version
end

function __fish_strandfs_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_strandfs_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_strandfs_using_subcommand
    set -l cmd (__fish_strandfs_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c strandfs -n "__fish_strandfs_needs_command" -s h -l help -d 'Print help'
complete -c strandfs -n "__fish_strandfs_needs_command" -s V -l version -d 'Print version'
complete -c strandfs -n "__fish_strandfs_needs_command" -f -a "mount" -d 'Mount a pool of branches'
complete -c strandfs -n "__fish_strandfs_needs_command" -f -a "umount" -d 'Unmount a pool, and wait for its server to end: 15 seconds, then exit code 3'
complete -c strandfs -n "__fish_strandfs_needs_command" -f -a "unmount" -d 'Unmount a pool, and wait for its server to end: 15 seconds, then exit code 3'
complete -c strandfs -n "__fish_strandfs_needs_command" -f -a "status" -d 'Show mounted pools: branches, space, passthrough and why, options'
complete -c strandfs -n "__fish_strandfs_needs_command" -f -a "metrics" -d 'Print what mounted pools have counted, for Prometheus and its like: requests, how long they took, branches, caches'
complete -c strandfs -n "__fish_strandfs_needs_command" -f -a "top" -d 'Watch a mounted pool in the terminal: requests, branches, who uses it, what moves'
complete -c strandfs -n "__fish_strandfs_needs_command" -f -a "config" -d 'Show the options in force and where they come from, or check a configuration file'
complete -c strandfs -n "__fish_strandfs_needs_command" -f -a "import-fstab" -d 'Translate lines of /etc/fstab or a configuration file of mergerfs'
complete -c strandfs -n "__fish_strandfs_needs_command" -f -a "explain" -d 'Show where a path of a pool lies, and what each operation would do with it and why'
complete -c strandfs -n "__fish_strandfs_needs_command" -f -a "doctor" -d 'Look for what keeps pools from working, from being fast or safe, and say what to do'
complete -c strandfs -n "__fish_strandfs_needs_command" -f -a "get" -d 'Show options of a mounted pool'
complete -c strandfs -n "__fish_strandfs_needs_command" -f -a "set" -d 'Change options of a mounted pool, all of those named or none'
complete -c strandfs -n "__fish_strandfs_needs_command" -f -a "branch" -d 'Show, add, remove or change branches of a mounted pool'
complete -c strandfs -n "__fish_strandfs_needs_command" -f -a "reload" -d 'Have a mounted pool read its configuration again, as SIGHUP does: all of it or nothing'
complete -c strandfs -n "__fish_strandfs_needs_command" -f -a "notify-test" -d 'Try `notify.command` of a mounted pool: run it for an event named `test`, and say how it ended'
complete -c strandfs -n "__fish_strandfs_needs_command" -f -a "records" -d 'Show, accept or discard records of interrupted moves that no mount follows'
complete -c strandfs -n "__fish_strandfs_needs_command" -f -a "volume" -d 'Make a block device of one file: for disk images, encrypted containers, filesystems'
complete -c strandfs -n "__fish_strandfs_needs_command" -f -a "options" -d 'Explain mount options: all in brief, or those named in full'
complete -c strandfs -n "__fish_strandfs_needs_command" -f -a "bench" -d 'Measure, with statistics that say how sure they are'
complete -c strandfs -n "__fish_strandfs_needs_command" -f -a "completions" -d 'Print the completions of a shell'
complete -c strandfs -n "__fish_strandfs_using_subcommand mount" -s o -l options -d 'Options as in fstab, separated by commas; may be given more than once' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand mount" -s f -l foreground -d 'Stay in the foreground and log to standard error'
complete -c strandfs -n "__fish_strandfs_using_subcommand mount" -s r -l read-only -d 'Mount read-only'
complete -c strandfs -n "__fish_strandfs_using_subcommand mount" -s h -l help -d 'Print help'
complete -c strandfs -n "__fish_strandfs_using_subcommand umount" -s l -l lazy -d 'Take it out of sight now; it ends when its last user leaves, which is not waited for'
complete -c strandfs -n "__fish_strandfs_using_subcommand umount" -s h -l help -d 'Print help'
complete -c strandfs -n "__fish_strandfs_using_subcommand unmount" -s l -l lazy -d 'Take it out of sight now; it ends when its last user leaves, which is not waited for'
complete -c strandfs -n "__fish_strandfs_using_subcommand unmount" -s h -l help -d 'Print help'
complete -c strandfs -n "__fish_strandfs_using_subcommand status" -l json -d 'For programs'
complete -c strandfs -n "__fish_strandfs_using_subcommand status" -l outdated -d 'Only name the pools whose server still runs a program that was replaced since, as by an upgrade, and say how to switch'
complete -c strandfs -n "__fish_strandfs_using_subcommand status" -s h -l help -d 'Print help'
complete -c strandfs -n "__fish_strandfs_using_subcommand metrics" -l format -d 'The form: OpenMetrics 1.0, or the older one of Prometheus (0.0.4), which node_exporter reads' -r -f -a "openmetrics\t'OpenMetrics 1.0'
prometheus\t'Prometheus 0.0.4'"
complete -c strandfs -n "__fish_strandfs_using_subcommand metrics" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c strandfs -n "__fish_strandfs_using_subcommand top" -s i -l interval -d 'The time between two looks, over which figures are shown: 200ms to 1h' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand top" -l width -d 'The width of that text in columns, 80 or more; that of the terminal if left out' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand top" -l once -d 'Print what happens in one interval as text, and end'
complete -c strandfs -n "__fish_strandfs_using_subcommand top" -l no-color -d 'Use no colour, as with NO_COLOR in the environment'
complete -c strandfs -n "__fish_strandfs_using_subcommand top" -s h -l help -d 'Print help'
complete -c strandfs -n "__fish_strandfs_using_subcommand config; and not __fish_seen_subcommand_from show check" -s h -l help -d 'Print help'
complete -c strandfs -n "__fish_strandfs_using_subcommand config; and not __fish_seen_subcommand_from show check" -f -a "show" -d 'Show the options of a mounted pool or of a configuration file, as a TOML file'
complete -c strandfs -n "__fish_strandfs_using_subcommand config; and not __fish_seen_subcommand_from show check" -f -a "check" -d 'Check configuration files: a sentence for everything wrong, exit code 2'
complete -c strandfs -n "__fish_strandfs_using_subcommand config; and __fish_seen_subcommand_from show" -l origin -d 'Say behind each value where it comes from: default, a file and its line, fstab, command-line or run-time'
complete -c strandfs -n "__fish_strandfs_using_subcommand config; and __fish_seen_subcommand_from show" -s a -l all -d 'Show options that have their default value too'
complete -c strandfs -n "__fish_strandfs_using_subcommand config; and __fish_seen_subcommand_from show" -l json -d 'For programs; shows all options with their origins'
complete -c strandfs -n "__fish_strandfs_using_subcommand config; and __fish_seen_subcommand_from show" -s h -l help -d 'Print help'
complete -c strandfs -n "__fish_strandfs_using_subcommand config; and __fish_seen_subcommand_from check" -s h -l help -d 'Print help'
complete -c strandfs -n "__fish_strandfs_using_subcommand import-fstab" -l file -d 'A file like /etc/fstab, or a configuration file of mergerfs' -r -F
complete -c strandfs -n "__fish_strandfs_using_subcommand import-fstab" -l dir -d 'Write a TOML file for each pool into this directory, named after its mountpoint and never over one that is there, and print the lines that are left for fstab' -r -F
complete -c strandfs -n "__fish_strandfs_using_subcommand import-fstab" -l toml -d 'Write a TOML file instead of a line of fstab'
complete -c strandfs -n "__fish_strandfs_using_subcommand import-fstab" -l exact -d 'Also set the options whose defaults differ from those of mergerfs to what they are there'
complete -c strandfs -n "__fish_strandfs_using_subcommand import-fstab" -s h -l help -d 'Print help'
complete -c strandfs -n "__fish_strandfs_using_subcommand explain" -l json -d 'For programs'
complete -c strandfs -n "__fish_strandfs_using_subcommand explain" -s h -l help -d 'Print help'
complete -c strandfs -n "__fish_strandfs_using_subcommand doctor" -l json -d 'For programs'
complete -c strandfs -n "__fish_strandfs_using_subcommand doctor" -s h -l help -d 'Print help'
complete -c strandfs -n "__fish_strandfs_using_subcommand get" -l json -d 'For programs'
complete -c strandfs -n "__fish_strandfs_using_subcommand get" -s h -l help -d 'Print help'
complete -c strandfs -n "__fish_strandfs_using_subcommand set" -l save -d 'Write them into the TOML file the pool was mounted from, too'
complete -c strandfs -n "__fish_strandfs_using_subcommand set" -s h -l help -d 'Print help'
complete -c strandfs -n "__fish_strandfs_using_subcommand branch; and not __fish_seen_subcommand_from list add remove set" -s h -l help -d 'Print help'
complete -c strandfs -n "__fish_strandfs_using_subcommand branch; and not __fish_seen_subcommand_from list add remove set" -f -a "list" -d 'Show the branches'
complete -c strandfs -n "__fish_strandfs_using_subcommand branch; and not __fish_seen_subcommand_from list add remove set" -f -a "add" -d 'Add a branch'
complete -c strandfs -n "__fish_strandfs_using_subcommand branch; and not __fish_seen_subcommand_from list add remove set" -f -a "remove" -d 'Remove a branch; files on it stay where they are, and those that are open stay open'
complete -c strandfs -n "__fish_strandfs_using_subcommand branch; and not __fish_seen_subcommand_from list add remove set" -f -a "set" -d 'Change a branch in place'
complete -c strandfs -n "__fish_strandfs_using_subcommand branch; and __fish_seen_subcommand_from list" -l json -d 'For programs'
complete -c strandfs -n "__fish_strandfs_using_subcommand branch; and __fish_seen_subcommand_from list" -s h -l help -d 'Print help'
complete -c strandfs -n "__fish_strandfs_using_subcommand branch; and __fish_seen_subcommand_from add" -l mode -d 'RW, RO or NC; RW if left out' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand branch; and __fish_seen_subcommand_from add" -l minfreespace -d 'Free space this branch needs to receive new files, as 4G, 5% or 4G/5%' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand branch; and __fish_seen_subcommand_from add" -l first -d 'Before the other branches instead of behind them'
complete -c strandfs -n "__fish_strandfs_using_subcommand branch; and __fish_seen_subcommand_from add" -l save -d 'Write the change into the TOML file the pool was mounted from, too'
complete -c strandfs -n "__fish_strandfs_using_subcommand branch; and __fish_seen_subcommand_from add" -s h -l help -d 'Print help'
complete -c strandfs -n "__fish_strandfs_using_subcommand branch; and __fish_seen_subcommand_from remove" -l save -d 'Write the change into the TOML file the pool was mounted from, too'
complete -c strandfs -n "__fish_strandfs_using_subcommand branch; and __fish_seen_subcommand_from remove" -s h -l help -d 'Print help'
complete -c strandfs -n "__fish_strandfs_using_subcommand branch; and __fish_seen_subcommand_from set" -l mode -d 'RW, RO or NC' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand branch; and __fish_seen_subcommand_from set" -l minfreespace -d 'Free space this branch needs to receive new files, or `default` for the pool\'s' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand branch; and __fish_seen_subcommand_from set" -l save -d 'Write the change into the TOML file the pool was mounted from, too'
complete -c strandfs -n "__fish_strandfs_using_subcommand branch; and __fish_seen_subcommand_from set" -s h -l help -d 'Print help'
complete -c strandfs -n "__fish_strandfs_using_subcommand reload" -s h -l help -d 'Print help'
complete -c strandfs -n "__fish_strandfs_using_subcommand notify-test" -s h -l help -d 'Print help'
complete -c strandfs -n "__fish_strandfs_using_subcommand records; and not __fish_seen_subcommand_from list accept discard" -s h -l help -d 'Print help'
complete -c strandfs -n "__fish_strandfs_using_subcommand records; and not __fish_seen_subcommand_from list accept discard" -f -a "list" -d 'Show the records at the roots of branches, and which of them the next mount follows'
complete -c strandfs -n "__fish_strandfs_using_subcommand records; and not __fish_seen_subcommand_from list accept discard" -f -a "accept" -d 'Have the next mount follow a record that another machine or an earlier version wrote'
complete -c strandfs -n "__fish_strandfs_using_subcommand records; and not __fish_seen_subcommand_from list accept discard" -f -a "discard" -d 'Remove a record; what it speaks of stays as it is'
complete -c strandfs -n "__fish_strandfs_using_subcommand records; and __fish_seen_subcommand_from list" -l json -d 'For programs'
complete -c strandfs -n "__fish_strandfs_using_subcommand records; and __fish_seen_subcommand_from list" -s h -l help -d 'Print help'
complete -c strandfs -n "__fish_strandfs_using_subcommand records; and __fish_seen_subcommand_from accept" -l yes -d 'Do it; without this, what following it does is only shown'
complete -c strandfs -n "__fish_strandfs_using_subcommand records; and __fish_seen_subcommand_from accept" -s h -l help -d 'Print help'
complete -c strandfs -n "__fish_strandfs_using_subcommand records; and __fish_seen_subcommand_from discard" -s h -l help -d 'Print help'
complete -c strandfs -n "__fish_strandfs_using_subcommand volume; and not __fish_seen_subcommand_from serve attach detach list resize" -s h -l help -d 'Print help'
complete -c strandfs -n "__fish_strandfs_using_subcommand volume; and not __fish_seen_subcommand_from serve attach detach list resize" -f -a "serve" -d 'Serve a backing file as the file MOUNTPOINT/volume'
complete -c strandfs -n "__fish_strandfs_using_subcommand volume; and not __fish_seen_subcommand_from serve attach detach list resize" -f -a "attach" -d 'Serve a backing file, make a block device of it and perhaps mount what is on it; prints the device'
complete -c strandfs -n "__fish_strandfs_using_subcommand volume; and not __fish_seen_subcommand_from serve attach detach list resize" -f -a "detach" -d 'Undo `attach`: unmount, let go of the block device, end the server'
complete -c strandfs -n "__fish_strandfs_using_subcommand volume; and not __fish_seen_subcommand_from serve attach detach list resize" -f -a "list" -d 'Show the volumes that are served'
complete -c strandfs -n "__fish_strandfs_using_subcommand volume; and not __fish_seen_subcommand_from serve attach detach list resize" -f -a "resize" -d 'Make a volume larger, in use or not'
complete -c strandfs -n "__fish_strandfs_using_subcommand volume; and __fish_seen_subcommand_from serve" -l size -d 'Size of the volume, as 512M or 10G; needed for a new one. A smaller one grows to it' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand volume; and __fish_seen_subcommand_from serve" -l queue-depth -d 'Requests in flight in each queue, where the server reads and writes [default: 128; 32 for a file in memory]' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand volume; and __fish_seen_subcommand_from serve" -l transport -d 'How requests reach the server: over /dev/fuse, or over io_uring' -r -f -a "auto\t''
dev\t''
uring\t''"
complete -c strandfs -n "__fish_strandfs_using_subcommand volume; and __fish_seen_subcommand_from serve" -l io -d 'How data gets to the backing file: past the server in the kernel, by the server many requests at a time, or by the server a thread for each. Auto is the first that works' -r -f -a "auto\t''
passthrough\t''
uring\t''
sync\t''"
complete -c strandfs -n "__fish_strandfs_using_subcommand volume; and __fish_seen_subcommand_from serve" -s f -l foreground -d 'Stay in the foreground and log to standard error'
complete -c strandfs -n "__fish_strandfs_using_subcommand volume; and __fish_seen_subcommand_from serve" -s h -l help -d 'Print help'
complete -c strandfs -n "__fish_strandfs_using_subcommand volume; and __fish_seen_subcommand_from attach" -l size -d 'Size of the volume, as 512M or 10G; needed for a new one. A smaller one grows to it' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand volume; and __fish_seen_subcommand_from attach" -l queue-depth -d 'Requests in flight in each queue, where the server reads and writes [default: 128; 32 for a file in memory]' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand volume; and __fish_seen_subcommand_from attach" -l transport -d 'How requests reach the server: over /dev/fuse, or over io_uring' -r -f -a "auto\t''
dev\t''
uring\t''"
complete -c strandfs -n "__fish_strandfs_using_subcommand volume; and __fish_seen_subcommand_from attach" -l io -d 'How data gets to the backing file: past the server in the kernel, by the server many requests at a time, or by the server a thread for each. Auto is the first that works' -r -f -a "auto\t''
passthrough\t''
uring\t''
sync\t''"
complete -c strandfs -n "__fish_strandfs_using_subcommand volume; and __fish_seen_subcommand_from attach" -l mkfs -d 'Make a filesystem of this type, such as xfs, first; only on a blank volume' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand volume; and __fish_seen_subcommand_from attach" -s o -l options -d 'Options for the mount of the filesystem' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand volume; and __fish_seen_subcommand_from attach" -l sector-size -d 'Size of the block device\'s sectors; what is on the volume decides if left out, and a blank one gets 4096' -r -f -a "512\t''
4096\t''"
complete -c strandfs -n "__fish_strandfs_using_subcommand volume; and __fish_seen_subcommand_from attach" -s h -l help -d 'Print help'
complete -c strandfs -n "__fish_strandfs_using_subcommand volume; and __fish_seen_subcommand_from detach" -l discard -d 'Detach even if the backing file was removed, and lose what is on the volume'
complete -c strandfs -n "__fish_strandfs_using_subcommand volume; and __fish_seen_subcommand_from detach" -s h -l help -d 'Print help'
complete -c strandfs -n "__fish_strandfs_using_subcommand volume; and __fish_seen_subcommand_from list" -l json -d 'For programs'
complete -c strandfs -n "__fish_strandfs_using_subcommand volume; and __fish_seen_subcommand_from list" -s h -l help -d 'Print help'
complete -c strandfs -n "__fish_strandfs_using_subcommand volume; and __fish_seen_subcommand_from resize" -l size -d 'The new size, as 512M or 10G; never smaller' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand volume; and __fish_seen_subcommand_from resize" -s h -l help -d 'Print help'
complete -c strandfs -n "__fish_strandfs_using_subcommand options" -s h -l help -d 'Print help'
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and not __fish_seen_subcommand_from layers live blocksize passthrough metadata matrix volume latency depth compare report export reproduce requests" -s h -l help -d 'Print help'
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and not __fish_seen_subcommand_from layers live blocksize passthrough metadata matrix volume latency depth compare report export reproduce requests" -f -a "layers" -d 'Which part is slow: the machine, the pool, or what it lies on; measured level by level'
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and not __fish_seen_subcommand_from layers live blocksize passthrough metadata matrix volume latency depth compare report export reproduce requests" -f -a "live" -d 'Which part of a mounted pool is slow, from its own requests over a minute'
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and not __fish_seen_subcommand_from layers live blocksize passthrough metadata matrix volume latency depth compare report export reproduce requests" -f -a "blocksize" -d 'What the size of reads and writes costs: 512 bytes against 1 MiB, and a line through the sizes'
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and not __fish_seen_subcommand_from layers live blocksize passthrough metadata matrix volume latency depth compare report export reproduce requests" -f -a "passthrough" -d 'Passthrough against the other ways in which a pool moves data, and against none'
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and not __fish_seen_subcommand_from layers live blocksize passthrough metadata matrix volume latency depth compare report export reproduce requests" -f -a "metadata" -d 'Creating, finding, listing and removing files: the bare filesystem, pools and their peers'
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and not __fish_seen_subcommand_from layers live blocksize passthrough metadata matrix volume latency depth compare report export reproduce requests" -f -a "matrix" -d 'One large file on filesystems made with different mkfs and mount options (root)'
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and not __fish_seen_subcommand_from layers live blocksize passthrough metadata matrix volume latency depth compare report export reproduce requests" -f -a "volume" -d 'Small requests at great depth: a file, a loop device, volumes, a filesystem on one (root)'
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and not __fish_seen_subcommand_from layers live blocksize passthrough metadata matrix volume latency depth compare report export reproduce requests" -f -a "latency" -d 'How long single operations take, by percentile and over time: at full speed or at a fixed rate, and until the figures are steady'
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and not __fish_seen_subcommand_from layers live blocksize passthrough metadata matrix volume latency depth compare report export reproduce requests" -f -a "depth" -d 'Small direct requests, one, some and many in flight (fio), with passthrough and without'
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and not __fish_seen_subcommand_from layers live blocksize passthrough metadata matrix volume latency depth compare report export reproduce requests" -f -a "compare" -d 'Compare two results of the same benchmark; exit code 4 if anything became slower'
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and not __fish_seen_subcommand_from layers live blocksize passthrough metadata matrix volume latency depth compare report export reproduce requests" -f -a "report" -d 'Make one HTML page with charts of results; it needs no network'
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and not __fish_seen_subcommand_from layers live blocksize passthrough metadata matrix volume latency depth compare report export reproduce requests" -f -a "export" -d 'Write all samples of a result as comma-separated values'
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and not __fish_seen_subcommand_from layers live blocksize passthrough metadata matrix volume latency depth compare report export reproduce requests" -f -a "reproduce" -d 'Measure the tables that others published, and write a page with both beside each other (root)'
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and not __fish_seen_subcommand_from layers live blocksize passthrough metadata matrix volume latency depth compare report export reproduce requests" -f -a "requests" -d 'Requests the kernel sends to a FUSE filesystem for what programs do, counted by the kernel'
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from layers" -l modes -d 'How the pool moves data: passthrough, direct, cached (default: all)' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from layers" -l transports -d 'How requests come from the kernel: dev, uring (default: those that work here)' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from layers" -l only -d 'Only these rows (default: all; a wrong name lists them)' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from layers" -l branches -d 'Measure pools of so many branches, too, beside those of one: 2 to 64, all in the same place' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from layers" -l round-trip -d 'Measure each TARGET as well as it would be if so much more time passed before every answer of it, as on a network: 1ms to 1s' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from layers" -l size -d 'The size of each file' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from layers" -l reps -d 'So many repetitions, no fewer and no more; intervals need 5 (default: for `layers` as many as the answer needs, from 3 to 20, with --quick to 60; else 9, and up to 18 of rows that stay unstable)' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from layers" -l max-reps -d 'Up to so many repetitions as long as the answer is open or rows are unstable' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from layers" -l time-limit -d 'Begin no measurement that would end later (default: for `layers` without --reps 5m, with --quick 60s). Making an image, and the cross-check, come on top' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from layers" -l sample-time -d 'What one sample may take; slow storage does less work in it' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from layers" -s o -l options -d 'Further mount options of every pool' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from layers" -l filesystems -d 'Further filesystems for targets: as for `bench matrix`' -r -F
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from layers" -l images -d 'Where images of targets go that name no file' -r -F
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from layers" -l program -d 'The strandfs to measure (default: this one)' -r -F
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from layers" -l directory -d 'Where mountpoints and, for root, tmpfs go' -r -F
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from layers" -l json -d 'Write everything measured and the machine\'s description to this file' -r -F
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from layers" -l seed -d 'Draws the order of the levels, the data and the places of random access' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from layers" -l quick -d 'An answer, or that there is none, within a minute on a target of any speed: one mode, one transport, the rows that say most, no cross-check. What is asked for besides is done all the same'
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from layers" -l no-cross-check -d 'Do not set our own figures beside those of dd and fio'
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from layers" -l busy -d 'Keep one CPU busy meanwhile; many servers are faster then'
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from layers" -s h -l help -d 'Print help'
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from live" -l seconds -d 'How long its requests are watched, 3 to 3600' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from live" -l json -d 'Print the figures and the verdict as JSON'
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from live" -s h -l help -d 'Print help'
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from blocksize" -l size -d 'The size of each file' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from blocksize" -l reps -d 'So many repetitions, no fewer and no more; intervals need 5 (default: for `layers` as many as the answer needs, from 3 to 20, with --quick to 60; else 9, and up to 18 of rows that stay unstable)' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from blocksize" -l max-reps -d 'Up to so many repetitions as long as the answer is open or rows are unstable' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from blocksize" -l time-limit -d 'Begin no measurement that would end later (default: for `layers` without --reps 5m, with --quick 60s). Making an image, and the cross-check, come on top' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from blocksize" -l sample-time -d 'What one sample may take; slow storage does less work in it' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from blocksize" -s o -l options -d 'Further mount options of every pool' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from blocksize" -l filesystems -d 'Further filesystems for targets: as for `bench matrix`' -r -F
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from blocksize" -l images -d 'Where images of targets go that name no file' -r -F
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from blocksize" -l program -d 'The strandfs to measure (default: this one)' -r -F
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from blocksize" -l directory -d 'Where mountpoints and, for root, tmpfs go' -r -F
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from blocksize" -l json -d 'Write everything measured and the machine\'s description to this file' -r -F
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from blocksize" -l seed -d 'Draws the order of the levels, the data and the places of random access' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from blocksize" -l busy -d 'Keep one CPU busy meanwhile; many servers are faster then'
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from blocksize" -s h -l help -d 'Print help'
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from passthrough" -l size -d 'The size of each file' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from passthrough" -l reps -d 'So many repetitions, no fewer and no more; intervals need 5 (default: for `layers` as many as the answer needs, from 3 to 20, with --quick to 60; else 9, and up to 18 of rows that stay unstable)' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from passthrough" -l max-reps -d 'Up to so many repetitions as long as the answer is open or rows are unstable' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from passthrough" -l time-limit -d 'Begin no measurement that would end later (default: for `layers` without --reps 5m, with --quick 60s). Making an image, and the cross-check, come on top' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from passthrough" -l sample-time -d 'What one sample may take; slow storage does less work in it' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from passthrough" -s o -l options -d 'Further mount options of every pool' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from passthrough" -l filesystems -d 'Further filesystems for targets: as for `bench matrix`' -r -F
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from passthrough" -l images -d 'Where images of targets go that name no file' -r -F
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from passthrough" -l program -d 'The strandfs to measure (default: this one)' -r -F
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from passthrough" -l directory -d 'Where mountpoints and, for root, tmpfs go' -r -F
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from passthrough" -l json -d 'Write everything measured and the machine\'s description to this file' -r -F
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from passthrough" -l seed -d 'Draws the order of the levels, the data and the places of random access' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from passthrough" -l busy -d 'Keep one CPU busy meanwhile; many servers are faster then'
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from passthrough" -s h -l help -d 'Print help'
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from metadata" -l files -d 'Files or directories each workload works on' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from metadata" -l reps -d 'Repetitions; intervals need 5' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from metadata" -l only -d 'Only these workloads (default: all; a wrong name lists them)' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from metadata" -l callers -d 'So many callers at the same time, each in a directory of its own; every number makes rows' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from metadata" -l user -d 'Who the callers are, by name or number (root only): some kernels ask a pool more for others than for root' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from metadata" -l branches -d 'Pools of so many branches' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from metadata" -l variant -d 'A further subject: a pool with these mount options' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from metadata" -l peer -d 'A further subject: another build of mergerfs' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from metadata" -l directory -d 'Where to work; for root each branch is a tmpfs mounted there' -r -F
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from metadata" -l json -d 'Write everything measured and the machine\'s description to this file' -r -F
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from metadata" -l seed -d 'Draws the order of the subjects' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from metadata" -l no-peers -d 'Leave out mergerfs, unionfs-fuse, fuse-overlayfs and overlayfs where they are installed'
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from metadata" -l busy -d 'Keep one CPU busy meanwhile; many servers are faster then'
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from metadata" -s h -l help -d 'Print help'
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from matrix" -l preset -d 'The size of the file: 1 GiB or 5 GiB' -r -f -a "seed-small\t'1 GiB'
seed-large\t'5 GiB'"
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from matrix" -l size -d 'Another size of the file' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from matrix" -l reps -d 'Repetitions, each on all filesystems; intervals need 5' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from matrix" -l max-reps -d 'Repetitions as long as figures are unstable (default: 3 more)' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from matrix" -l pause -d 'Between two repeated reads; the comparison this follows has 1s' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from matrix" -l only -d 'Only these filesystems (default: all; a wrong name lists them)' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from matrix" -l filesystems -d 'Further filesystems: a TOML file of `filesystem` tables with name, type, mkfs and mount' -r -F
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from matrix" -l device -d 'Make them on this device instead of an image. All that is on it is lost' -r -F
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from matrix" -l i-will-lose-data-on -d 'The same device again, to say that this is meant' -r -F
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from matrix" -l directory -d 'Where the image goes' -r -F
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from matrix" -l json -d 'Write everything measured and the machine\'s description to this file' -r -F
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from matrix" -l seed -d 'Draws the order of the filesystems, and the data' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from matrix" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from volume" -l size -d 'The size of each backing file' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from volume" -l time -d 'How long each of the four jobs runs' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from volume" -l reps -d 'Repetitions; intervals need 5' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from volume" -l io -d 'Volumes that get at their backing file in these ways; ext4 is measured on the first' -r -f -a "passthrough\t''
uring\t''
sync\t''"
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from volume" -l transport -d 'Volumes whose requests come over these (default: the volume\'s own choice)' -r -f -a "dev\t''
uring\t''"
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from volume" -l directory -d 'Where the backing files go (default: a tmpfs made for the run)' -r -F
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from volume" -l json -d 'Write everything measured and the machine\'s description to this file' -r -F
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from volume" -l seed -d 'Draws the order' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from volume" -s h -l help -d 'Print help'
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from latency" -l operation -d 'What is done again and again' -r -f -a "random-read\t'Read at random places'
random-write\t'Write at random places'
read\t'Read from the beginning, again and again'
write\t'Write from the beginning, again and again'"
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from latency" -l block -d 'Bytes of one operation' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from latency" -l rate -d 'So many operations begin in a second, however long they take, and each is timed from when it was due (default: as fast as they can)' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from latency" -l threads -d 'Callers at once' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from latency" -l round -d 'How long each subject works in a round' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from latency" -l rounds -d 'Rounds (with --steady: at most)' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from latency" -l modes -d 'Ways of the pool: passthrough, direct, cached (default: all)' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from latency" -l size -d 'The size of each file' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from latency" -s o -l options -d 'Further mount options of every pool' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from latency" -l filesystems -d 'Further filesystems for targets: as for `bench matrix`' -r -F
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from latency" -l images -d 'Where images of targets go that name no file' -r -F
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from latency" -l program -d 'The strandfs to measure (default: this one)' -r -F
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from latency" -l directory -d 'Where mountpoints and, for root, tmpfs go' -r -F
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from latency" -l json -d 'Write everything measured and the machine\'s description to this file' -r -F
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from latency" -l seed -d 'Draws the order of the subjects and the places' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from latency" -l direct -d 'Past the page cache (O_DIRECT)'
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from latency" -l sync -d 'Each write is on storage before it returns (O_DSYNC)'
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from latency" -l steady -d 'Rounds until the last five differ by no more than a fifth and drift by no more than a tenth of their average (SNIA PTS), and figures of these five alone; at most 25'
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from latency" -l busy -d 'Keep one CPU busy meanwhile; many servers are faster then'
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from latency" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from depth" -l depths -d 'Requests in flight' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from depth" -l time -d 'How long each job runs' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from depth" -l modes -d 'Ways of the pool: passthrough, direct, cached' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from depth" -l size -d 'The size of each file' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from depth" -l reps -d 'Repetitions; intervals need 5' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from depth" -s o -l options -d 'Further mount options of every pool' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from depth" -l filesystems -d 'Further filesystems for targets: as for `bench matrix`' -r -F
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from depth" -l images -d 'Where images of targets go that name no file' -r -F
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from depth" -l program -d 'The strandfs to measure (default: this one)' -r -F
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from depth" -l directory -d 'Where mountpoints and, for root, tmpfs go' -r -F
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from depth" -l json -d 'Write everything measured and the machine\'s description to this file' -r -F
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from depth" -l seed -d 'Draws the order of the subjects, and the data' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from depth" -l busy -d 'Keep one CPU busy meanwhile; many servers are faster then'
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from depth" -s h -l help -d 'Print help'
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from compare" -l threshold -d 'A change of speed up to so many percent does not count' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from compare" -l absolute -d 'Set nothing against the bare filesystem measured beside it: a machine that was slower as a whole then shows as a regression'
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from compare" -s a -l all -d 'Show the rows without a measurable difference too'
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from compare" -s h -l help -d 'Print help'
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from report" -s o -l output -d 'The page to write' -r -F
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from report" -s h -l help -d 'Print help'
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from export" -s o -l output -d 'The table to write (default: standard output)' -r -F
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from export" -s h -l help -d 'Print help'
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from reproduce" -s o -l output -d 'The page to write, in Markdown' -r -F
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from reproduce" -l reps -d 'Repetitions of every table; intervals need 5' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from reproduce" -l size -d 'The size of the file of the table of filesystems; published are figures of 1 GB' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from reproduce" -l images -d 'Where the filesystems\' image goes: on the device that is to be measured' -r -F
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from reproduce" -l results -d 'Where the results go, one file each (default: none are kept)' -r -F
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from reproduce" -s h -l help -d 'Print help'
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from requests" -l variant -d 'A further subject: a pool with these mount options' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from requests" -l peer -d 'A further subject: another build of mergerfs' -r
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from requests" -l directory -d 'Where to work; for root each branch is a tmpfs mounted there' -r -F
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from requests" -l json -d 'Write everything measured and the machine\'s description to this file' -r -F
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from requests" -l no-peers -d 'Leave out mergerfs, unionfs-fuse, fuse-overlayfs and overlayfs where they are installed'
complete -c strandfs -n "__fish_strandfs_using_subcommand bench; and __fish_seen_subcommand_from requests" -s h -l help -d 'Print help'
complete -c strandfs -n "__fish_strandfs_using_subcommand completions" -s h -l help -d 'Print help'

function __strandfs_options
    set -l head (string match -r '^.*,' -- (commandline -ct))
    switch (string replace -r '^.*,' '' -- (commandline -ct))
        case 'mount-over=*'
            printf '%s\n' "$head"'mount-over='{true,false}
        case 'nonempty=*'
            printf '%s\n' "$head"'nonempty='{true,false}
        case 'branches-mount-timeout-fail=*'
            printf '%s\n' "$head"'branches-mount-timeout-fail='{true,false}
        case 'subtype=*'
            printf '%s\n' "$head"'subtype='{strandfs,mergerfs}
        case 'statfs=*'
            printf '%s\n' "$head"'statfs='{base,full}
        case 'statfs-ignore=*'
            printf '%s\n' "$head"'statfs-ignore='{none,ro,nc}
        case 'passthrough.io=*'
            printf '%s\n' "$head"'passthrough.io='{auto,off,ro,wo,rw}
        case 'preload=*'
            printf '%s\n' "$head"'preload='{true,false}
        case 'on-missing=*'
            printf '%s\n' "$head"'on-missing='{fail,readonly,degrade,wait}
        case 'cross-mounts=*'
            printf '%s\n' "$head"'cross-mounts='{system,none,all}
        case 'moveonenospc=*'
            printf '%s\n' "$head"'moveonenospc='{all,epall,epff,eplfs,eplus,epmfs,eppfrd,eprand,erofs,ff,lfs,lup,lus,mfs,msplfs,msplus,mspmfs,msppfrd,newest,pfrd,rand}
        case 'passthrough.unheld=*'
            printf '%s\n' "$head"'passthrough.unheld='{auto,headroom,off}
        case 'link-exdev=*'
            printf '%s\n' "$head"'link-exdev='{passthrough,rel-symlink,abs-base-symlink,abs-pool-symlink}
        case 'rename-exdev=*'
            printf '%s\n' "$head"'rename-exdev='{passthrough,rel-symlink,abs-symlink}
        case 'category.action=*'
            printf '%s\n' "$head"'category.action='{all,epall,epff,eplfs,eplus,epmfs,eppfrd,eprand,erofs,ff,lfs,lup,lus,mfs,msplfs,msplus,mspmfs,msppfrd,newest,pfrd,rand}
        case 'category.create=*'
            printf '%s\n' "$head"'category.create='{all,epall,epff,eplfs,eplus,epmfs,eppfrd,eprand,erofs,ff,lfs,lup,lus,mfs,msplfs,msplus,mspmfs,msppfrd,newest,pfrd,rand}
        case 'category.search=*'
            printf '%s\n' "$head"'category.search='{all,epall,epff,eplfs,eplus,epmfs,eppfrd,eprand,erofs,ff,lfs,lup,lus,mfs,msplfs,msplus,mspmfs,msppfrd,newest,pfrd,rand}
        case 'func.access=*'
            printf '%s\n' "$head"'func.access='{all,epall,epff,eplfs,eplus,epmfs,eppfrd,eprand,erofs,ff,lfs,lup,lus,mfs,msplfs,msplus,mspmfs,msppfrd,newest,pfrd,rand}
        case 'func.chmod=*'
            printf '%s\n' "$head"'func.chmod='{all,epall,epff,eplfs,eplus,epmfs,eppfrd,eprand,erofs,ff,lfs,lup,lus,mfs,msplfs,msplus,mspmfs,msppfrd,newest,pfrd,rand}
        case 'func.chown=*'
            printf '%s\n' "$head"'func.chown='{all,epall,epff,eplfs,eplus,epmfs,eppfrd,eprand,erofs,ff,lfs,lup,lus,mfs,msplfs,msplus,mspmfs,msppfrd,newest,pfrd,rand}
        case 'func.create=*'
            printf '%s\n' "$head"'func.create='{all,epall,epff,eplfs,eplus,epmfs,eppfrd,eprand,erofs,ff,lfs,lup,lus,mfs,msplfs,msplus,mspmfs,msppfrd,newest,pfrd,rand}
        case 'func.getattr=*'
            printf '%s\n' "$head"'func.getattr='{all,epall,epff,eplfs,eplus,epmfs,eppfrd,eprand,erofs,ff,lfs,lup,lus,mfs,msplfs,msplus,mspmfs,msppfrd,newest,pfrd,rand}
        case 'func.getxattr=*'
            printf '%s\n' "$head"'func.getxattr='{all,epall,epff,eplfs,eplus,epmfs,eppfrd,eprand,erofs,ff,lfs,lup,lus,mfs,msplfs,msplus,mspmfs,msppfrd,newest,pfrd,rand}
        case 'func.link=*'
            printf '%s\n' "$head"'func.link='{all,epall,epff,eplfs,eplus,epmfs,eppfrd,eprand,erofs,ff,lfs,lup,lus,mfs,msplfs,msplus,mspmfs,msppfrd,newest,pfrd,rand}
        case 'func.listxattr=*'
            printf '%s\n' "$head"'func.listxattr='{all,epall,epff,eplfs,eplus,epmfs,eppfrd,eprand,erofs,ff,lfs,lup,lus,mfs,msplfs,msplus,mspmfs,msppfrd,newest,pfrd,rand}
        case 'func.mkdir=*'
            printf '%s\n' "$head"'func.mkdir='{all,epall,epff,eplfs,eplus,epmfs,eppfrd,eprand,erofs,ff,lfs,lup,lus,mfs,msplfs,msplus,mspmfs,msppfrd,newest,pfrd,rand}
        case 'func.mknod=*'
            printf '%s\n' "$head"'func.mknod='{all,epall,epff,eplfs,eplus,epmfs,eppfrd,eprand,erofs,ff,lfs,lup,lus,mfs,msplfs,msplus,mspmfs,msppfrd,newest,pfrd,rand}
        case 'func.open=*'
            printf '%s\n' "$head"'func.open='{all,epall,epff,eplfs,eplus,epmfs,eppfrd,eprand,erofs,ff,lfs,lup,lus,mfs,msplfs,msplus,mspmfs,msppfrd,newest,pfrd,rand}
        case 'func.readlink=*'
            printf '%s\n' "$head"'func.readlink='{all,epall,epff,eplfs,eplus,epmfs,eppfrd,eprand,erofs,ff,lfs,lup,lus,mfs,msplfs,msplus,mspmfs,msppfrd,newest,pfrd,rand}
        case 'func.removexattr=*'
            printf '%s\n' "$head"'func.removexattr='{all,epall,epff,eplfs,eplus,epmfs,eppfrd,eprand,erofs,ff,lfs,lup,lus,mfs,msplfs,msplus,mspmfs,msppfrd,newest,pfrd,rand}
        case 'func.rename=*'
            printf '%s\n' "$head"'func.rename='{all,epall,epff,eplfs,eplus,epmfs,eppfrd,eprand,erofs,ff,lfs,lup,lus,mfs,msplfs,msplus,mspmfs,msppfrd,newest,pfrd,rand}
        case 'func.rmdir=*'
            printf '%s\n' "$head"'func.rmdir='{all,epall,epff,eplfs,eplus,epmfs,eppfrd,eprand,erofs,ff,lfs,lup,lus,mfs,msplfs,msplus,mspmfs,msppfrd,newest,pfrd,rand}
        case 'func.setxattr=*'
            printf '%s\n' "$head"'func.setxattr='{all,epall,epff,eplfs,eplus,epmfs,eppfrd,eprand,erofs,ff,lfs,lup,lus,mfs,msplfs,msplus,mspmfs,msppfrd,newest,pfrd,rand}
        case 'func.symlink=*'
            printf '%s\n' "$head"'func.symlink='{all,epall,epff,eplfs,eplus,epmfs,eppfrd,eprand,erofs,ff,lfs,lup,lus,mfs,msplfs,msplus,mspmfs,msppfrd,newest,pfrd,rand}
        case 'func.truncate=*'
            printf '%s\n' "$head"'func.truncate='{all,epall,epff,eplfs,eplus,epmfs,eppfrd,eprand,erofs,ff,lfs,lup,lus,mfs,msplfs,msplus,mspmfs,msppfrd,newest,pfrd,rand}
        case 'func.unlink=*'
            printf '%s\n' "$head"'func.unlink='{all,epall,epff,eplfs,eplus,epmfs,eppfrd,eprand,erofs,ff,lfs,lup,lus,mfs,msplfs,msplus,mspmfs,msppfrd,newest,pfrd,rand}
        case 'func.utimens=*'
            printf '%s\n' "$head"'func.utimens='{all,epall,epff,eplfs,eplus,epmfs,eppfrd,eprand,erofs,ff,lfs,lup,lus,mfs,msplfs,msplus,mspmfs,msppfrd,newest,pfrd,rand}
        case 'ignorepponrename=*'
            printf '%s\n' "$head"'ignorepponrename='{true,false}
        case 'coherence=*'
            printf '%s\n' "$head"'coherence='{auto,watch,timeout,strict}
        case 'cache.files=*'
            printf '%s\n' "$head"'cache.files='{off,partial,full,auto-full,per-process}
        case 'cache.readdir=*'
            printf '%s\n' "$head"'cache.readdir='{auto,true,false}
        case 'cache.symlinks=*'
            printf '%s\n' "$head"'cache.symlinks='{true,false}
        case 'cache.writeback=*'
            printf '%s\n' "$head"'cache.writeback='{true,false}
        case 'dropcacheonclose=*'
            printf '%s\n' "$head"'dropcacheonclose='{true,false}
        case 'direct-io-allow-mmap=*'
            printf '%s\n' "$head"'direct-io-allow-mmap='{true,false}
        case 'parallel-direct-writes=*'
            printf '%s\n' "$head"'parallel-direct-writes='{true,false}
        case 'flush-on-close=*'
            printf '%s\n' "$head"'flush-on-close='{never,opened-for-write,always}
        case 'nullrw=*'
            printf '%s\n' "$head"'nullrw='{true,false}
        case 'pin-threads=*'
            printf '%s\n' "$head"'pin-threads='{false,anywhere,R1L,R1P,RP1L,RP1P,R1LP1L,R1PP1P,RPSL,RPSP,R1PPSP}
        case 'transport=*'
            printf '%s\n' "$head"'transport='{auto,dev,uring}
        case 'proxy-ioprio=*'
            printf '%s\n' "$head"'proxy-ioprio='{true,false}
        case 'xattr=*'
            printf '%s\n' "$head"'xattr='{passthrough,noattr,nosys}
        case 'security-capability=*'
            printf '%s\n' "$head"'security-capability='{true,false}
        case 'posix-acl=*'
            printf '%s\n' "$head"'posix-acl='{true,false}
        case 'kernel-permissions-check=*'
            printf '%s\n' "$head"'kernel-permissions-check='{true,false}
        case 'export-support=*'
            printf '%s\n' "$head"'export-support='{true,false}
        case 'allow-idmap=*'
            printf '%s\n' "$head"'allow-idmap='{true,false}
        case 'handle-killpriv=*'
            printf '%s\n' "$head"'handle-killpriv='{true,false}
        case 'handle-killpriv-v2=*'
            printf '%s\n' "$head"'handle-killpriv-v2='{true,false}
        case 'debug=*'
            printf '%s\n' "$head"'debug='{true,false}
        case 'inodecalc=*'
            printf '%s\n' "$head"'inodecalc='{passthrough,path-hash,path-hash32,devino-hash,devino-hash32,hybrid-hash,hybrid-hash32}
        case 'symlinkify=*'
            printf '%s\n' "$head"'symlinkify='{true,false}
        case 'follow-symlinks=*'
            printf '%s\n' "$head"'follow-symlinks='{never,directory,regular,all}
        case 'link-cow=*'
            printf '%s\n' "$head"'link-cow='{true,false}
        case 'nfsopenhack=*'
            printf '%s\n' "$head"'nfsopenhack='{off,git,all}
        case 'dirsync=*'
            printf '%s\n' "$head"'dirsync='{true,false}
        case 'allow-other=*'
            printf '%s\n' "$head"'allow-other='{auto,true,false}
        case 'auto-unmount=*'
            printf '%s\n' "$head"'auto-unmount='{true,false}
        case 'core-dumps=*'
            printf '%s\n' "$head"'core-dumps='{true,false}
        case 'lazy-umount-mountpoint=*'
            printf '%s\n' "$head"'lazy-umount-mountpoint='{true,false}
        case '*'
            printf '%s\t%s\n' "$head"'branches=' 'the directories that make up the pool'
            printf '%s\t%s\n' "$head"'mountpoint=' 'where the pool is mounted'
            printf '%s\t%s\n' "$head"'mount-over=' 'mount although a pool is mounted there already'
            printf '%s\t%s\n' "$head"'nonempty=' 'a mountpoint with files in it is meant'
            printf '%s\t%s\n' "$head"'config=' 'file to read options from'
            printf '%s\t%s\n' "$head"'branches-mount-timeout=' 'how long to wait for branches that are not mounted yet'
            printf '%s\t%s\n' "$head"'branches-mount-timeout-fail=' 'mount nothing if a branch is not mounted in time'
            printf '%s\t%s\n' "$head"'minfreespace=' 'free space a branch needs to receive new files'
            printf '%s\t%s\n' "$head"'fsname=' 'source shown by df and in /proc/mounts'
            printf '%s\t%s\n' "$head"'subtype=' 'show the mount as fuse.strandfs or fuse.mergerfs'
            printf '%s\t%s\n' "$head"'statfs=' 'which branches count for free space'
            printf '%s\t%s\n' "$head"'statfs-ignore=' 'branches whose free space is left out'
            printf '%s\t%s\n' "$head"'passthrough.io=' 'opens whose data the kernel moves without the server'
            printf '%s\t%s\n' "$head"'preload=' 'answer the preload library: data past the server'
            printf '%s\t%s\n' "$head"'passthrough.max-stack-depth=' 'how many stacked filesystems passthrough may sit in'
            printf '%s\t%s\n' "$head"'on-missing=' 'what to do while a branch is missing'
            printf '%s\t%s\n' "$head"'branch-marker=' 'a file that every branch has in its root'
            printf '%s\t%s\n' "$head"'cross-mounts=' 'which mounts below a branch are part of it'
            printf '%s\t%s\n' "$head"'branch-check-interval=' 'how often each branch is checked'
            printf '%s\t%s\n' "$head"'branch-slow-after=' 'when a branch that does not answer counts as slow'
            printf '%s\t%s\n' "$head"'branch-deadline=' 'when a branch that does not answer counts as missing'
            printf '%s\t%s\n' "$head"'moveonenospc=' 'move a file on when its branch is full'
            printf '%s\t%s\n' "$head"'passthrough.headroom=' 'free space a branch needs for writing in passthrough'
            printf '%s\t%s\n' "$head"'passthrough.unheld=' 'writing in passthrough where writes cannot be held'
            printf '%s\t%s\n' "$head"'relocate.hold=' 'how long a write in passthrough may wait for room'
            printf '%s\t%s\n' "$head"'relocate.ahead=' 'free space that closed files make way for'
            printf '%s\t%s\n' "$head"'relocate.rate=' 'bytes per second that relocate.ahead moves at most'
            printf '%s\t%s\n' "$head"'link-exdev=' 'what a hard link between branches becomes'
            printf '%s\t%s\n' "$head"'rename-exdev=' 'what a rename between branches becomes'
            printf '%s\t%s\n' "$head"'category.action=' 'policy of every change to what exists'
            printf '%s\t%s\n' "$head"'category.create=' 'policy of making something new'
            printf '%s\t%s\n' "$head"'category.search=' 'policy of looking at what exists'
            printf '%s\t%s\n' "$head"'func.access=' 'branch asked about permissions'
            printf '%s\t%s\n' "$head"'func.chmod=' 'branches where a mode changes'
            printf '%s\t%s\n' "$head"'func.chown=' 'branches where an owner changes'
            printf '%s\t%s\n' "$head"'func.create=' 'branch that receives a new file'
            printf '%s\t%s\n' "$head"'func.getattr=' 'branch whose attributes are shown'
            printf '%s\t%s\n' "$head"'func.getxattr=' 'branch whose extended attribute is read'
            printf '%s\t%s\n' "$head"'func.link=' 'branches where a hard link is made'
            printf '%s\t%s\n' "$head"'func.listxattr=' 'branch whose extended attributes are listed'
            printf '%s\t%s\n' "$head"'func.mkdir=' 'branches that receive a new directory'
            printf '%s\t%s\n' "$head"'func.mknod=' 'branches that receive a new special file'
            printf '%s\t%s\n' "$head"'func.open=' 'branch whose file is opened'
            printf '%s\t%s\n' "$head"'func.readlink=' 'branch whose symbolic link is read'
            printf '%s\t%s\n' "$head"'func.removexattr=' 'branches losing an extended attribute'
            printf '%s\t%s\n' "$head"'func.rename=' 'branches where a name changes'
            printf '%s\t%s\n' "$head"'func.rmdir=' 'branches where a directory is removed'
            printf '%s\t%s\n' "$head"'func.setxattr=' 'branches where an extended attribute is set'
            printf '%s\t%s\n' "$head"'func.symlink=' 'branches that receive a new symbolic link'
            printf '%s\t%s\n' "$head"'func.truncate=' 'branches where a size changes'
            printf '%s\t%s\n' "$head"'func.unlink=' 'branches where a file is removed'
            printf '%s\t%s\n' "$head"'func.utimens=' 'branches where times change'
            printf '%s\t%s\n' "$head"'func.readdir=' 'whether branches are listed one by one or together'
            printf '%s\t%s\n' "$head"'ignorepponrename=' 'let rename and link create missing directories'
            printf '%s\t%s\n' "$head"'coherence=' 'how caches follow changes made behind the pool'
            printf '%s\t%s\n' "$head"'cache.files=' 'page cache of files that are not in passthrough'
            printf '%s\t%s\n' "$head"'cache.files.process-names=' 'processes for cache.files=per-process'
            printf '%s\t%s\n' "$head"'cache.attr=' 'how long the kernel may keep attributes'
            printf '%s\t%s\n' "$head"'cache.entry=' 'how long the kernel may keep names'
            printf '%s\t%s\n' "$head"'cache.negative-entry=' 'how long the kernel may keep that a name is absent'
            printf '%s\t%s\n' "$head"'cache.readdir=' 'let the kernel keep directory listings'
            printf '%s\t%s\n' "$head"'cache.symlinks=' 'let the kernel keep the targets of symbolic links'
            printf '%s\t%s\n' "$head"'cache.statfs=' 'how long policies trust a branch\'s free-space figures'
            printf '%s\t%s\n' "$head"'cache.writeback=' 'let the kernel collect small writes before sending them'
            printf '%s\t%s\n' "$head"'dropcacheonclose=' 'drop a file\'s pages on the branch when it is closed'
            printf '%s\t%s\n' "$head"'fuse-msg-size=' 'largest message to and from the kernel'
            printf '%s\t%s\n' "$head"'readahead=' 'how far the kernel reads ahead, in KiB'
            printf '%s\t%s\n' "$head"'async-read' 'let the kernel send several reads of a file at once'
            printf '%s\t%s\n' "$head"'sync-read' 'the reverse'
            printf '%s\t%s\n' "$head"'direct-io-allow-mmap=' 'let files opened with cache.files=off be mapped'
            printf '%s\t%s\n' "$head"'parallel-direct-writes=' 'let several direct writes to a file run at once'
            printf '%s\t%s\n' "$head"'flush-on-close=' 'which closes are passed to the branch'
            printf '%s\t%s\n' "$head"'nullrw=' 'throw data away: for benchmarks only'
            printf '%s\t%s\n' "$head"'threads=' 'most threads that serve requests, 0 for automatic'
            printf '%s\t%s\n' "$head"'process-thread-count=' 'threads on top of those of threads, -1 for none'
            printf '%s\t%s\n' "$head"'pin-threads=' 'which CPUs the threads run on'
            printf '%s\t%s\n' "$head"'transport=' 'how requests come from the kernel: /dev/fuse or io_uring'
            printf '%s\t%s\n' "$head"'scheduling-priority=' 'the server\'s nice value'
            printf '%s\t%s\n' "$head"'proxy-ioprio=' 'read and write with the caller\'s I/O priority'
            printf '%s\t%s\n' "$head"'xattr=' 'extended attributes'
            printf '%s\t%s\n' "$head"'security-capability=' 'pass file capabilities through'
            printf '%s\t%s\n' "$head"'posix-acl=' 'honour POSIX access control lists'
            printf '%s\t%s\n' "$head"'kernel-permissions-check=' 'let the kernel check permissions by mode and owner'
            printf '%s\t%s\n' "$head"'export-support=' 'find files by handle, as an NFS server needs'
            printf '%s\t%s\n' "$head"'allow-idmap=' 'allow id-mapped mounts of the pool'
            printf '%s\t%s\n' "$head"'handle-killpriv=' 'the server clears set-id bits on write and chown'
            printf '%s\t%s\n' "$head"'handle-killpriv-v2=' 'as handle-killpriv, and only where the kernel says so'
            printf '%s\t%s\n' "$head"'debug=' 'log every request and every decision'
            printf '%s\t%s\n' "$head"'log.file=' 'log to this file'
            printf '%s\t%s\n' "$head"'metrics.listen=' 'where Prometheus and its like read what the pool has counted'
            printf '%s\t%s\n' "$head"'slow.log=' 'log requests that take this long'
            printf '%s\t%s\n' "$head"'notify.command=' 'program to run when a branch is in trouble'
            printf '%s\t%s\n' "$head"'notify.interval=' 'how often the same event of a branch is told'
            printf '%s\t%s\n' "$head"'notify.timeout=' 'how long notify.command may run'
            printf '%s\t%s\n' "$head"'notify.full-below=' 'free space below which a branch is nearly full'
            printf '%s\t%s\n' "$head"'inodecalc=' 'how inode numbers are made'
            printf '%s\t%s\n' "$head"'symlinkify=' 'show old read-only files as symbolic links'
            printf '%s\t%s\n' "$head"'symlinkify-timeout=' 'how long unchanged before symlinkify applies'
            printf '%s\t%s\n' "$head"'follow-symlinks=' 'show symbolic links as what they lead to'
            printf '%s\t%s\n' "$head"'link-cow=' 'give a hard-linked file its own copy before a write'
            printf '%s\t%s\n' "$head"'nfsopenhack=' 'open read-only files for writing where refused'
            printf '%s\t%s\n' "$head"'uid=' 'owner that everything is shown with'
            printf '%s\t%s\n' "$head"'gid=' 'group that everything is shown with'
            printf '%s\t%s\n' "$head"'umask=' 'permissions nothing is shown with'
            printf '%s\t%s\n' "$head"'ro' 'mount read-only'
            printf '%s\t%s\n' "$head"'rw' 'the default'
            printf '%s\t%s\n' "$head"'suid' 'honour set-user-id bits and file capabilities'
            printf '%s\t%s\n' "$head"'nosuid' 'the reverse'
            printf '%s\t%s\n' "$head"'dev' 'honour device nodes'
            printf '%s\t%s\n' "$head"'nodev' 'the reverse'
            printf '%s\t%s\n' "$head"'noexec' 'refuse to run programs'
            printf '%s\t%s\n' "$head"'exec' 'the default'
            printf '%s\t%s\n' "$head"'sync' 'have writes on disk before they return'
            printf '%s\t%s\n' "$head"'async' 'the default'
            printf '%s\t%s\n' "$head"'dirsync=' 'have changes of names on disk before they return'
            printf '%s\t%s\n' "$head"'noatime' 'never update access times'
            printf '%s\t%s\n' "$head"'atime' 'the default'
            printf '%s\t%s\n' "$head"'relatime' 'update access times when they are old'
            printf '%s\t%s\n' "$head"'norelatime' 'the default'
            printf '%s\t%s\n' "$head"'strictatime' 'update access times at every access'
            printf '%s\t%s\n' "$head"'nostrictatime' 'the default'
            printf '%s\t%s\n' "$head"'nodiratime' 'never update access times of directories'
            printf '%s\t%s\n' "$head"'diratime' 'the default'
            printf '%s\t%s\n' "$head"'lazytime' 'keep changed times in memory for a while'
            printf '%s\t%s\n' "$head"'nolazytime' 'the default'
            printf '%s\t%s\n' "$head"'allow-other=' 'let other users than the mounting one in'
            printf '%s\t%s\n' "$head"'auto-unmount=' 'unmount when the server ends, however it ends'
            printf '%s\t%s\n' "$head"'core-dumps=' 'let a crashed server leave its memory on disk'
            printf '%s\t%s\n' "$head"'setuid=' 'user the server runs as, when root mounts'
            printf '%s\t%s\n' "$head"'lazy-umount-mountpoint=' 'first detach what is mounted at the mountpoint'
            printf '%s\t%s\n' "$head"'context=' 'SELinux label of every file'
            printf '%s\t%s\n' "$head"'fscontext=' 'SELinux label of the filesystem'
            printf '%s\t%s\n' "$head"'defcontext=' 'SELinux label of files without one'
            printf '%s\t%s\n' "$head"'rootcontext=' 'SELinux label of the root'
    end
end

complete -c strandfs -n '__fish_seen_subcommand_from mount' -s o -l options -x -a '(__strandfs_options)'
