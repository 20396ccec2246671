_strandfs() {
    local i cur prev opts cmd
    COMPREPLY=()
    if [[ "${BASH_VERSINFO[0]}" -ge 4 ]]; then
        cur="$2"
    else
        cur="${COMP_WORDS[COMP_CWORD]}"
    fi
    prev="$3"
    cmd=""
    opts=""

    for i in "${COMP_WORDS[@]:0:COMP_CWORD}"
    do
        case "${cmd},${i}" in
            ",$1")
                cmd="strandfs"
                ;;
            strandfs,bench)
                cmd="strandfs__subcmd__bench"
                ;;
            strandfs,branch)
                cmd="strandfs__subcmd__branch"
                ;;
            strandfs,completions)
                cmd="strandfs__subcmd__completions"
                ;;
            strandfs,config)
                cmd="strandfs__subcmd__config"
                ;;
            strandfs,doctor)
                cmd="strandfs__subcmd__doctor"
                ;;
            strandfs,explain)
                cmd="strandfs__subcmd__explain"
                ;;
            strandfs,get)
                cmd="strandfs__subcmd__get"
                ;;
            strandfs,import-fstab)
                cmd="strandfs__subcmd__import__subcmd__fstab"
                ;;
            strandfs,metrics)
                cmd="strandfs__subcmd__metrics"
                ;;
            strandfs,mount)
                cmd="strandfs__subcmd__mount"
                ;;
            strandfs,notify-test)
                cmd="strandfs__subcmd__notify__subcmd__test"
                ;;
            strandfs,options)
                cmd="strandfs__subcmd__options"
                ;;
            strandfs,records)
                cmd="strandfs__subcmd__records"
                ;;
            strandfs,reload)
                cmd="strandfs__subcmd__reload"
                ;;
            strandfs,set)
                cmd="strandfs__subcmd__set"
                ;;
            strandfs,status)
                cmd="strandfs__subcmd__status"
                ;;
            strandfs,top)
                cmd="strandfs__subcmd__top"
                ;;
            strandfs,umount)
                cmd="strandfs__subcmd__umount"
                ;;
            strandfs,unmount)
                cmd="strandfs__subcmd__umount"
                ;;
            strandfs,volume)
                cmd="strandfs__subcmd__volume"
                ;;
            strandfs__subcmd__bench,blocksize)
                cmd="strandfs__subcmd__bench__subcmd__blocksize"
                ;;
            strandfs__subcmd__bench,compare)
                cmd="strandfs__subcmd__bench__subcmd__compare"
                ;;
            strandfs__subcmd__bench,depth)
                cmd="strandfs__subcmd__bench__subcmd__depth"
                ;;
            strandfs__subcmd__bench,export)
                cmd="strandfs__subcmd__bench__subcmd__export"
                ;;
            strandfs__subcmd__bench,latency)
                cmd="strandfs__subcmd__bench__subcmd__latency"
                ;;
            strandfs__subcmd__bench,layers)
                cmd="strandfs__subcmd__bench__subcmd__layers"
                ;;
            strandfs__subcmd__bench,live)
                cmd="strandfs__subcmd__bench__subcmd__live"
                ;;
            strandfs__subcmd__bench,matrix)
                cmd="strandfs__subcmd__bench__subcmd__matrix"
                ;;
            strandfs__subcmd__bench,metadata)
                cmd="strandfs__subcmd__bench__subcmd__metadata"
                ;;
            strandfs__subcmd__bench,passthrough)
                cmd="strandfs__subcmd__bench__subcmd__passthrough"
                ;;
            strandfs__subcmd__bench,report)
                cmd="strandfs__subcmd__bench__subcmd__report"
                ;;
            strandfs__subcmd__bench,reproduce)
                cmd="strandfs__subcmd__bench__subcmd__reproduce"
                ;;
            strandfs__subcmd__bench,requests)
                cmd="strandfs__subcmd__bench__subcmd__requests"
                ;;
            strandfs__subcmd__bench,volume)
                cmd="strandfs__subcmd__bench__subcmd__volume"
                ;;
            strandfs__subcmd__branch,add)
                cmd="strandfs__subcmd__branch__subcmd__add"
                ;;
            strandfs__subcmd__branch,list)
                cmd="strandfs__subcmd__branch__subcmd__list"
                ;;
            strandfs__subcmd__branch,remove)
                cmd="strandfs__subcmd__branch__subcmd__remove"
                ;;
            strandfs__subcmd__branch,set)
                cmd="strandfs__subcmd__branch__subcmd__set"
                ;;
            strandfs__subcmd__config,check)
                cmd="strandfs__subcmd__config__subcmd__check"
                ;;
            strandfs__subcmd__config,show)
                cmd="strandfs__subcmd__config__subcmd__show"
                ;;
            strandfs__subcmd__records,accept)
                cmd="strandfs__subcmd__records__subcmd__accept"
                ;;
            strandfs__subcmd__records,discard)
                cmd="strandfs__subcmd__records__subcmd__discard"
                ;;
            strandfs__subcmd__records,list)
                cmd="strandfs__subcmd__records__subcmd__list"
                ;;
            strandfs__subcmd__volume,attach)
                cmd="strandfs__subcmd__volume__subcmd__attach"
                ;;
            strandfs__subcmd__volume,detach)
                cmd="strandfs__subcmd__volume__subcmd__detach"
                ;;
            strandfs__subcmd__volume,list)
                cmd="strandfs__subcmd__volume__subcmd__list"
                ;;
            strandfs__subcmd__volume,resize)
                cmd="strandfs__subcmd__volume__subcmd__resize"
                ;;
            strandfs__subcmd__volume,serve)
                cmd="strandfs__subcmd__volume__subcmd__serve"
                ;;
            *)
                ;;
        esac
    done

    case "${cmd}" in
        strandfs)
            opts="-h -V --help --version mount umount unmount status metrics top config import-fstab explain doctor get set branch reload notify-test records volume options bench completions"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 1 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        strandfs__subcmd__bench)
            opts="-h --help layers live blocksize passthrough metadata matrix volume latency depth compare report export reproduce requests"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        strandfs__subcmd__bench__subcmd__blocksize)
            opts="-o -h --size --reps --max-reps --time-limit --sample-time --options --filesystems --images --program --busy --directory --json --seed --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --size)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --reps)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --max-reps)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --time-limit)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --sample-time)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --options)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -o)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --filesystems)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --images)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --program)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --directory)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --json)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --seed)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        strandfs__subcmd__bench__subcmd__compare)
            opts="-a -h --threshold --absolute --all --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --threshold)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        strandfs__subcmd__bench__subcmd__depth)
            opts="-o -h --depths --time --modes --size --reps --options --filesystems --images --program --busy --directory --json --seed --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --depths)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --time)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --modes)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --size)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --reps)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --options)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -o)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --filesystems)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --images)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --program)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --directory)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --json)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --seed)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        strandfs__subcmd__bench__subcmd__export)
            opts="-o -h --output --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --output)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -o)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        strandfs__subcmd__bench__subcmd__latency)
            opts="-o -h --operation --block --rate --threads --direct --sync --round --rounds --steady --modes --size --options --filesystems --images --program --busy --directory --json --seed --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --operation)
                    COMPREPLY=($(compgen -W "random-read random-write read write" -- "${cur}"))
                    return 0
                    ;;
                --block)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --rate)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --threads)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --round)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --rounds)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --modes)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --size)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --options)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -o)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --filesystems)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --images)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --program)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --directory)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --json)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --seed)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        strandfs__subcmd__bench__subcmd__layers)
            opts="-o -h --modes --transports --only --branches --round-trip --quick --no-cross-check --size --reps --max-reps --time-limit --sample-time --options --filesystems --images --program --busy --directory --json --seed --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --modes)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --transports)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --only)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --branches)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --round-trip)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --size)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --reps)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --max-reps)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --time-limit)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --sample-time)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --options)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -o)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --filesystems)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --images)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --program)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --directory)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --json)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --seed)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        strandfs__subcmd__bench__subcmd__live)
            opts="-h --seconds --json --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --seconds)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        strandfs__subcmd__bench__subcmd__matrix)
            opts="-h --preset --size --reps --max-reps --pause --only --filesystems --device --i-will-lose-data-on --directory --json --seed --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --preset)
                    COMPREPLY=($(compgen -W "seed-small seed-large" -- "${cur}"))
                    return 0
                    ;;
                --size)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --reps)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --max-reps)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --pause)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --only)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --filesystems)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --device)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --i-will-lose-data-on)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --directory)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --json)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --seed)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        strandfs__subcmd__bench__subcmd__metadata)
            opts="-h --files --reps --only --callers --user --branches --variant --peer --no-peers --busy --directory --json --seed --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --files)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --reps)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --only)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --callers)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --user)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --branches)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --variant)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --peer)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --directory)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --json)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --seed)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        strandfs__subcmd__bench__subcmd__passthrough)
            opts="-o -h --size --reps --max-reps --time-limit --sample-time --options --filesystems --images --program --busy --directory --json --seed --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --size)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --reps)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --max-reps)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --time-limit)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --sample-time)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --options)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -o)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --filesystems)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --images)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --program)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --directory)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --json)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --seed)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        strandfs__subcmd__bench__subcmd__report)
            opts="-o -h --output --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --output)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -o)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        strandfs__subcmd__bench__subcmd__reproduce)
            opts="-o -h --output --reps --size --images --results --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --output)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -o)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --reps)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --size)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --images)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --results)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        strandfs__subcmd__bench__subcmd__requests)
            opts="-h --variant --peer --no-peers --directory --json --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --variant)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --peer)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --directory)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --json)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        strandfs__subcmd__bench__subcmd__volume)
            opts="-h --size --time --reps --io --transport --directory --json --seed --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --size)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --time)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --reps)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --io)
                    COMPREPLY=($(compgen -W "passthrough uring sync" -- "${cur}"))
                    return 0
                    ;;
                --transport)
                    COMPREPLY=($(compgen -W "dev uring" -- "${cur}"))
                    return 0
                    ;;
                --directory)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --json)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --seed)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        strandfs__subcmd__branch)
            opts="-h --help list add remove set"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        strandfs__subcmd__branch__subcmd__add)
            opts="-h --mode --minfreespace --first --save --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --mode)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --minfreespace)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        strandfs__subcmd__branch__subcmd__list)
            opts="-h --json --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        strandfs__subcmd__branch__subcmd__remove)
            opts="-h --save --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        strandfs__subcmd__branch__subcmd__set)
            opts="-h --mode --minfreespace --save --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --mode)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --minfreespace)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        strandfs__subcmd__completions)
            opts="-h --help bash elvish fish powershell zsh"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        strandfs__subcmd__config)
            opts="-h --help show check"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        strandfs__subcmd__config__subcmd__check)
            opts="-h --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        strandfs__subcmd__config__subcmd__show)
            opts="-a -h --origin --all --json --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        strandfs__subcmd__doctor)
            opts="-h --json --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        strandfs__subcmd__explain)
            opts="-h --json --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        strandfs__subcmd__get)
            opts="-h --json --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        strandfs__subcmd__import__subcmd__fstab)
            opts="-h --file --toml --dir --exact --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --file)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --dir)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        strandfs__subcmd__metrics)
            opts="-h --format --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --format)
                    COMPREPLY=($(compgen -W "openmetrics prometheus" -- "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        strandfs__subcmd__mount)
            opts="-f -o -r -h --foreground --options --read-only --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --options)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -o)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        strandfs__subcmd__notify__subcmd__test)
            opts="-h --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        strandfs__subcmd__options)
            opts="-h --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        strandfs__subcmd__records)
            opts="-h --help list accept discard"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        strandfs__subcmd__records__subcmd__accept)
            opts="-h --yes --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        strandfs__subcmd__records__subcmd__discard)
            opts="-h --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        strandfs__subcmd__records__subcmd__list)
            opts="-h --json --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        strandfs__subcmd__reload)
            opts="-h --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        strandfs__subcmd__set)
            opts="-h --save --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        strandfs__subcmd__status)
            opts="-h --json --outdated --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        strandfs__subcmd__top)
            opts="-i -h --interval --once --width --no-color --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --interval)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -i)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --width)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        strandfs__subcmd__umount)
            opts="-l -h --lazy --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        strandfs__subcmd__volume)
            opts="-h --help serve attach detach list resize"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        strandfs__subcmd__volume__subcmd__attach)
            opts="-o -h --size --queue-depth --transport --io --mkfs --options --sector-size --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --size)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --queue-depth)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --transport)
                    COMPREPLY=($(compgen -W "auto dev uring" -- "${cur}"))
                    return 0
                    ;;
                --io)
                    COMPREPLY=($(compgen -W "auto passthrough uring sync" -- "${cur}"))
                    return 0
                    ;;
                --mkfs)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --options)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -o)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --sector-size)
                    COMPREPLY=($(compgen -W "512 4096" -- "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        strandfs__subcmd__volume__subcmd__detach)
            opts="-h --discard --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        strandfs__subcmd__volume__subcmd__list)
            opts="-h --json --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        strandfs__subcmd__volume__subcmd__resize)
            opts="-h --size --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --size)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        strandfs__subcmd__volume__subcmd__serve)
            opts="-f -h --size --queue-depth --transport --io --foreground --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --size)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --queue-depth)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --transport)
                    COMPREPLY=($(compgen -W "auto dev uring" -- "${cur}"))
                    return 0
                    ;;
                --io)
                    COMPREPLY=($(compgen -W "auto passthrough uring sync" -- "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
    esac
}

if [[ "${BASH_VERSINFO[0]}" -eq 4 && "${BASH_VERSINFO[1]}" -ge 4 || "${BASH_VERSINFO[0]}" -gt 4 ]]; then
    complete -F _strandfs -o nosort -o bashdefault -o default strandfs
else
    complete -F _strandfs -o bashdefault -o default strandfs
fi

_strandfs_options() {
    local item="$1" head="" words
    if [[ "$item" == *,* ]]; then
        head="${item%,*},"
        item="${item##*,}"
    fi
    if [[ "$item" != *=* ]]; then
        words="branches= mountpoint= mount-over= nonempty= config= branches-mount-timeout= branches-mount-timeout-fail= minfreespace= fsname= subtype= statfs= statfs-ignore= passthrough.io= preload= passthrough.max-stack-depth= on-missing= branch-marker= cross-mounts= branch-check-interval= branch-slow-after= branch-deadline= moveonenospc= passthrough.headroom= passthrough.unheld= relocate.hold= relocate.ahead= relocate.rate= link-exdev= rename-exdev= category.action= category.create= category.search= func.access= func.chmod= func.chown= func.create= func.getattr= func.getxattr= func.link= func.listxattr= func.mkdir= func.mknod= func.open= func.readlink= func.removexattr= func.rename= func.rmdir= func.setxattr= func.symlink= func.truncate= func.unlink= func.utimens= func.readdir= ignorepponrename= coherence= cache.files= cache.files.process-names= cache.attr= cache.entry= cache.negative-entry= cache.readdir= cache.symlinks= cache.statfs= cache.writeback= dropcacheonclose= fuse-msg-size= readahead= async-read sync-read direct-io-allow-mmap= parallel-direct-writes= flush-on-close= nullrw= threads= process-thread-count= pin-threads= transport= scheduling-priority= proxy-ioprio= xattr= security-capability= posix-acl= kernel-permissions-check= export-support= allow-idmap= handle-killpriv= handle-killpriv-v2= debug= log.file= metrics.listen= slow.log= notify.command= notify.interval= notify.timeout= notify.full-below= inodecalc= symlinkify= symlinkify-timeout= follow-symlinks= link-cow= nfsopenhack= uid= gid= umask= ro rw suid nosuid dev nodev noexec exec sync async dirsync= noatime atime relatime norelatime strictatime nostrictatime nodiratime diratime lazytime nolazytime allow-other= auto-unmount= core-dumps= setuid= lazy-umount-mountpoint= context= fscontext= defcontext= rootcontext="
        # A list before the word belongs to it unless readline has cut it off at "=" or ":".
        head="${head##*[=:]}"
        COMPREPLY=($(compgen -P "$head" -W "$words" -- "$item"))
        compopt -o nospace 2>/dev/null
        return
    fi
    case "${item%%=*}" in
        moveonenospc | category.action | category.create | category.search | func.access | func.chmod | func.chown | func.create | func.getattr | func.getxattr | func.link | func.listxattr | func.mkdir | func.mknod | func.open | func.readlink | func.removexattr | func.rename | func.rmdir | func.setxattr | func.symlink | func.truncate | func.unlink | func.utimens) words="all epall epff eplfs eplus epmfs eppfrd eprand erofs ff lfs lup lus mfs msplfs msplus mspmfs msppfrd newest pfrd rand" ;;
        transport) words="auto dev uring" ;;
        passthrough.unheld) words="auto headroom off" ;;
        passthrough.io) words="auto off ro wo rw" ;;
        cache.readdir | allow-other) words="auto true false" ;;
        coherence) words="auto watch timeout strict" ;;
        statfs) words="base full" ;;
        on-missing) words="fail readonly degrade wait" ;;
        pin-threads) words="false anywhere R1L R1P RP1L RP1P R1LP1L R1PP1P RPSL RPSP R1PPSP" ;;
        follow-symlinks) words="never directory regular all" ;;
        flush-on-close) words="never opened-for-write always" ;;
        statfs-ignore) words="none ro nc" ;;
        nfsopenhack) words="off git all" ;;
        cache.files) words="off partial full auto-full per-process" ;;
        xattr) words="passthrough noattr nosys" ;;
        inodecalc) words="passthrough path-hash path-hash32 devino-hash devino-hash32 hybrid-hash hybrid-hash32" ;;
        link-exdev) words="passthrough rel-symlink abs-base-symlink abs-pool-symlink" ;;
        rename-exdev) words="passthrough rel-symlink abs-symlink" ;;
        subtype) words="strandfs mergerfs" ;;
        cross-mounts) words="system none all" ;;
        mount-over | nonempty | branches-mount-timeout-fail | preload | ignorepponrename | cache.symlinks | cache.writeback | dropcacheonclose | direct-io-allow-mmap | parallel-direct-writes | nullrw | proxy-ioprio | security-capability | posix-acl | kernel-permissions-check | export-support | allow-idmap | handle-killpriv | handle-killpriv-v2 | debug | symlinkify | link-cow | dirsync | auto-unmount | core-dumps | lazy-umount-mountpoint) words="true false" ;;
        *) words="" ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "${item#*=}"))
    compopt -o nospace 2>/dev/null
}

_strandfs_or_options() {
    local at=$COMP_CWORD argument=""
    while ((at > 1)) && [[ "${COMP_WORDS[at]}" == [=:] || "${COMP_WORDS[at - 1]}" == [=:] ]]; do
        argument="${COMP_WORDS[at]}$argument"
        ((at--))
    done
    argument="${COMP_WORDS[at]}$argument"
    case "${COMP_WORDS[at - 1]}" in
        -o | --options)
            COMPREPLY=()
            _strandfs_options "$argument"
            ;;
        *) _strandfs "$@" ;;
    esac
}

complete -F _strandfs_or_options -o bashdefault -o default strandfs
