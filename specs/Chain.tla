------------------------------- MODULE Chain -------------------------------
(***************************************************************************)
(* Membership of one chain, and writes and reads of one chunk on it: the   *)
(* protocol of crates/chain under the manager of crates/cluster.           *)
(*                                                                         *)
(* CRAQ (Terrace & Freedman, USENIX ATC 2009, sections 2 and 3) with the   *)
(* target states of docs/membership.md and read leases.                    *)
(*                                                                         *)
(* Actions that a replica takes have the names of the events of            *)
(* crates/chain/src/event.rs: Routing, Lease, Update, Read, Peer; the      *)
(* others are the manager's (Timer, Register) and the world's (Crash,      *)
(* Expire). A message and its handling are one step: loss, delay and       *)
(* reorder are steps that are taken late or never. Time is abstract: a     *)
(* lease may end at any moment, and what waits for its end is a guard.     *)
(***************************************************************************)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS
    Replicas,       \* a sequence: the chain at the beginning, head first
    Writes,         \* how many updates clients make
    Changes,        \* how many times the chain may change
    PeerLeases,     \* whether replicas promise each other to wait
    Bug             \* "none", or the name of a rule that is left out

R == { Replicas[i] : i \in DOMAIN Replicas }
None == [v |-> 0, w |-> 0]

VARIABLES
    chain,      \* the chain as the manager stored it: [ver, order, st]
    view,       \* view[r]: the chain as replica r last learned it
    staged,     \* staged[r]: the pending version of the chunk, or None
    committed,  \* committed[r]: the committed version
    up,         \* up[r]: its process runs
    lease,      \* lease[r]: it holds a lease of the manager
    grants,     \* <<p, r>>: p promised r to wait (a peer lease)
    synced,     \* synced[r]: the chain version for which it said UPTODATE
    inherited,  \* those that became tail with a pending version of an earlier tail's time
    joined,     \* those whose predecessor knows that they serve
    next,       \* the number of the next update
    seen        \* the newest version acknowledged or read

vars == <<chain, view, staged, committed, up, lease, grants, synced, inherited, joined, next, seen>>

-----------------------------------------------------------------------------
(* Chains *)

Serving(c) == { r \in R : c.st[r] = "SERVING" }
Writing(c) == { r \in R : c.st[r] \in {"SERVING", "SYNCING"} }
Place(c, r) == CHOOSE i \in DOMAIN c.order : c.order[i] = r
First(c, S) == CHOOSE r \in S : \A s \in S : Place(c, r) <= Place(c, s)
Last(c, S) == CHOOSE r \in S : \A s \in S : Place(c, r) >= Place(c, s)
HeadOf(c) == First(c, Serving(c))
TailOf(c) == Last(c, Serving(c))
After(c, r) == { s \in Writing(c) : Place(c, s) > Place(c, r) }
HasNext(c, r) == After(c, r) # {}
NextOf(c, r) == First(c, After(c, r))

\* The target-state table (crates/cluster/src/table.rs). local[r] is UPTODATE, ONLINE or OFFLINE.
Row(c, local, r) ==
    LET serves == Serving(c) # {} IN
    CASE local[r] = "OFFLINE" -> "OFFLINE"
      [] c.st[r] = "SERVING" /\ local[r] # "OFFLINE" -> "SERVING"
      [] c.st[r] = "SYNCING" /\ local[r] = "UPTODATE" /\ serves -> "SERVING"
      [] c.st[r] = "SYNCING" /\ local[r] = "ONLINE" /\ serves -> "SYNCING"
      [] OTHER -> "WAITING"

Table(c, local) ==
    LET first == [r \in R |-> Row(c, local, r)]
        kept == { r \in R : first[r] = "SERVING" }
        was == IF Serving(c) # {} THEN Serving(c) ELSE { r \in R : c.st[r] = "LASTSRV" }
        last == First(c, was)
        second == IF kept # {} \/ was = {} THEN first
                  ELSE [first EXCEPT ![last] =
                            IF local[last] = "OFFLINE" THEN "LASTSRV" ELSE "SERVING"]
        serves == { r \in R : second[r] = "SERVING" } # {}
        sync == { r \in R : second[r] = "SYNCING" }
        wait == { r \in R : second[r] = "WAITING" }
        one == IF ~serves THEN {} ELSE IF sync # {} THEN { First(c, sync) }
               ELSE IF wait # {} THEN { First(c, wait) } ELSE {}
        third == [r \in R |-> IF r \in sync \cup wait
                              THEN IF r \in one THEN "SYNCING" ELSE "WAITING"
                              ELSE second[r]]
        stay == { r \in R : third[r] = "SERVING" /\ c.st[r] = "SERVING" }
        join == { r \in R : third[r] = "SERVING" /\ c.st[r] # "SERVING" }
        mid == { r \in R : third[r] = "SYNCING" }
        rest == R \ (stay \cup join \cup mid)
        Pick(set) == SelectSeq(c.order, LAMBDA r : r \in set)
    IN [ver |-> c.ver + 1, st |-> third,
        order |-> Pick(stay) \o Pick(join) \o Pick(mid) \o Pick(rest)]

-----------------------------------------------------------------------------
(* What a replica may do by what it believes *)

Believes(r, state) == up[r] /\ view[r].st[r] = state
SameView(a, b) == Bug = "no version check" \/ view[a].ver = view[b].ver

\* A lease of the manager, or a promise of every other target that takes part in writes: the syncing
\* one could be promoted, and then go on alone.
Leased(r) ==
    \/ Bug = "read without a lease"
    \/ lease[r]
    \/ PeerLeases /\ \A p \in Writing(view[r]) \ {r} :
            \/ Bug = "no promise of the syncing one" /\ view[r].st[p] = "SYNCING"
            \/ <<p, r>> \in grants

\* A promoted target waits until its predecessor, as the tail before it, no longer tells others that
\* a version is pending which is committed here.
MayRead(r) ==
    /\ Believes(r, "SERVING") /\ Leased(r)
    /\ r \in joined \/ Bug = "read before joining"

\* What the tail holds to be committed. What was pending when it became tail may have been committed,
\* and read, at the tail before it: it commits that first.
TailSays(t) ==
    IF t \in inherited /\ Bug # "new tail answers at once" THEN <<>> ELSE <<committed[t]>>

\* What a read at r is answered; empty when it must wait.
Answer(r) ==
    LET t == TailOf(view[r]) IN
    IF staged[r] = None \/ Bug = "skip the tail query" THEN <<committed[r]>>
    ELSE IF t = r THEN TailSays(r)
    ELSE IF MayRead(t) /\ SameView(r, t) /\ t = TailOf(view[t]) THEN TailSays(t)
    ELSE <<>>

Newer(a, b) == IF a.v >= b.v THEN a ELSE b

-----------------------------------------------------------------------------
(* The replica *)

\* A client's update reaches the head.
Update ==
    /\ next <= Writes
    /\ \E h \in R :
        /\ Believes(h, "SERVING")
        /\ h = HeadOf(view[h])
        /\ staged[h] = None
        /\ staged' = [staged EXCEPT ![h] = [v |-> committed[h].v + 1, w |-> next]]
        /\ next' = next + 1
    /\ UNCHANGED <<chain, view, committed, up, lease, grants, synced, inherited, joined, seen>>

\* The pending version goes on to the successor.
PeerForward(a, b) ==
    /\ up[a] /\ up[b]
    /\ view[a].st[a] \in {"SERVING", "SYNCING"}
    /\ HasNext(view[a], a) /\ b = NextOf(view[a], a)
    /\ SameView(a, b)
    /\ staged[a] # None
    /\ staged[b] # staged[a] /\ committed[b].v < staged[a].v
    /\ staged' = [staged EXCEPT ![b] = staged[a]]
    \* A syncing replica gets the whole chunk, whatever it had before.
    /\ UNCHANGED <<chain, view, committed, up, lease, grants, synced, inherited, joined, next, seen>>

\* A replica commits what its successor has committed; the last one what it has staged. The head's
\* commit is the client's answer.
PeerCommit(a) ==
    /\ up[a] /\ staged[a] # None
    /\ view[a].st[a] \in {"SERVING", "SYNCING"}
    /\ \/ ~HasNext(view[a], a)
       \/ Bug = "commit before forwarding"
       \/ /\ HasNext(view[a], a)
          /\ LET b == NextOf(view[a], a) IN
            up[b] /\ SameView(a, b) /\ committed[b] = staged[a]
    /\ committed' = [committed EXCEPT ![a] = staged[a]]
    /\ staged' = [staged EXCEPT ![a] = None]
    /\ seen' = IF view[a].st[a] = "SERVING" /\ a = HeadOf(view[a])
               THEN Newer(staged[a], seen) ELSE seen
    /\ inherited' = inherited \ {a}
    /\ UNCHANGED <<chain, view, up, lease, grants, synced, joined, next>>

\* The last serving target brings the syncing one up to date, under the chunk's lock.
PeerSync(a, b) ==
    /\ up[a] /\ up[b] /\ SameView(a, b)
    /\ Believes(a, "SERVING") /\ a = TailOf(view[a]) /\ Believes(b, "SYNCING")
    /\ synced[b] # view[b].ver
    /\ \/ staged[a] = None
       \/ Bug = "sync past the lock"
    /\ committed' = [committed EXCEPT ![b] = committed[a]]
    /\ staged' = [staged EXCEPT ![b] = None]
    /\ synced' = [synced EXCEPT ![b] = view[b].ver]
    /\ UNCHANGED <<chain, view, up, lease, grants, inherited, joined, next, seen>>

\* A serving target promises another one not to act on a chain without it.
PeerGrant(p, r) ==
    /\ PeerLeases
    /\ p # r /\ up[p] /\ up[r] /\ view[p].ver = view[r].ver
    /\ view[p].st[p] \in {"SERVING", "SYNCING"} /\ Believes(r, "SERVING")
    /\ <<p, r>> \notin grants
    /\ grants' = grants \cup { <<p, r>> }
    /\ UNCHANGED <<chain, view, staged, committed, up, lease, synced, inherited, joined, next, seen>>

\* The predecessor of a promoted target says that it knows.
PeerJoin(a, b) ==
    /\ up[a] /\ up[b] /\ view[a].ver = view[b].ver
    /\ Believes(a, "SERVING") /\ Believes(b, "SERVING") /\ a \in joined /\ b \notin joined
    /\ HasNext(view[a], a) /\ b = NextOf(view[a], a)
    /\ joined' = joined \cup {b}
    /\ UNCHANGED <<chain, view, staged, committed, up, lease, grants, synced, inherited, next, seen>>

Peer == \/ \E a, b \in R :
            PeerForward(a, b) \/ PeerSync(a, b) \/ PeerGrant(a, b) \/ PeerJoin(a, b)
        \/ \E a \in R : PeerCommit(a)

Read ==
    /\ \E r \in R :
        /\ MayRead(r) /\ Answer(r) # <<>>
        /\ seen' = Newer(Answer(r)[1], seen)
        /\ seen' # seen
    /\ UNCHANGED <<chain, view, staged, committed, up, lease, grants, synced, inherited, joined, next>>

\* A replica learns the chain as it is now. It waits while a promise to somebody whom the new chain
\* drops still holds.
Routing ==
    /\ \E r \in R :
        LET c == chain
            promised == { s \in R : <<r, s>> \in grants /\ c.st[s] # "SERVING" }
            serves == c.st[r] = "SERVING"
            served == view[r].st[r] = "SERVING"
            back == serves /\ view[r].st[r] \notin {"SERVING", "SYNCING"}
        IN
        /\ up[r] /\ view[r].ver < c.ver
        /\ Bug = "ignore a peer grant" \/ promised = {}
        /\ view' = [view EXCEPT ![r] = c]
        \* What a target without a part has pending is of no chain any more; one that begins to sync
        \* starts anew; one that goes on syncing or serving keeps it, and so does the last serving one.
        /\ staged' = [staged EXCEPT ![r] =
                IF c.st[r] \in {"WAITING", "OFFLINE"}
                   \/ (c.st[r] = "SYNCING" /\ view[r].st[r] # "SYNCING")
                   \/ back
                THEN None ELSE @]
        \* Whatever was acknowledged is committed or staged at the last serving one, so it commits all.
        /\ committed' = [committed EXCEPT ![r] = IF back /\ staged[r] # None
                                                   /\ Bug # "last one forgets what is staged"
                                                THEN staged[r] ELSE @]
        /\ inherited' = IF serves /\ r = TailOf(c) /\ staged[r] # None
                              /\ (r \in inherited \/ ~(served /\ r = TailOf(view[r])))
                        THEN inherited \cup {r} ELSE inherited \ {r}
        /\ joined' = IF serves /\ (r \in joined \/ r = HeadOf(c)) THEN joined \cup {r}
                     ELSE joined \ {r}
        /\ grants' = { g \in grants : g[2] # r \/ serves }
    /\ UNCHANGED <<chain, up, lease, synced, next, seen>>

\* The answer to a heartbeat. No lease for a replica that the chain dropped, before it knows.
Lease ==
    /\ \E r \in R :
        /\ up[r] /\ ~lease[r]
        /\ \/ chain.st[r] = "SERVING"
           \/ view[r].ver = chain.ver
           \/ Bug = "lease before routing"
        /\ lease' = [lease EXCEPT ![r] = TRUE]
    /\ UNCHANGED <<chain, view, staged, committed, up, grants, synced, inherited, joined, next, seen>>

-----------------------------------------------------------------------------
(* The manager *)

\* The manager looks at the chain. It takes for gone whom it likes, among those without a lease.
Timer ==
    /\ chain.ver <= Changes
    /\ \E gone \in SUBSET { r \in R : ~lease[r] \/ Bug = "drop before the lease ends" } :
        LET local == [r \in R |->
                IF r \in gone THEN "OFFLINE"
                ELSE IF synced[r] = chain.ver THEN "UPTODATE" ELSE "ONLINE"]
            c == Table(chain, local)
        IN
        /\ \A r \in R \ gone : up[r]
        /\ c.st # chain.st
        /\ chain' = c
    /\ UNCHANGED <<view, staged, committed, up, lease, grants, synced, inherited, joined, next, seen>>

\* A process starts again. It is let in once its targets have no part in the chain.
Register ==
    /\ \E r \in R :
        /\ ~up[r]
        /\ chain.st[r] \in {"OFFLINE", "LASTSRV"} \/ Bug = "trust a restart"
        /\ up' = [up EXCEPT ![r] = TRUE]
    /\ UNCHANGED <<chain, view, staged, committed, lease, grants, synced, inherited, joined, next, seen>>

-----------------------------------------------------------------------------
(* The world *)

\* What is staged is durable; that it was committed may be forgotten where it was recorded lazily:
\* then the version is pending again.
Crash ==
    /\ \E r \in R :
        /\ up[r]
        /\ up' = [up EXCEPT ![r] = FALSE]
        /\ lease' = [lease EXCEPT ![r] = FALSE]
        \* What it promised may be forgotten, so a new process waits as long as a promise lasts.
        /\ grants' = { g \in grants : g[2] # r }
        \* Nor does it know its part: it goes on from a chain that has noticed.
        /\ view' = [view EXCEPT ![r].st[r] = IF Bug = "trust a restart" THEN @ ELSE "OFFLINE"]
        /\ \/ UNCHANGED <<staged, committed>>
           \/ /\ staged[r] = None /\ committed[r].v > 0 /\ view[r].st[r] = "SERVING"
              /\ staged' = [staged EXCEPT ![r] = committed[r]]
              /\ committed' = [committed EXCEPT ![r] = [v |-> committed[r].v - 1, w |-> 0]]
    /\ UNCHANGED <<chain, synced, inherited, joined, next, seen>>

Expire ==
    /\ \/ /\ \E r \in R : lease[r] /\ lease' = [lease EXCEPT ![r] = FALSE]
          /\ UNCHANGED grants
       \/ /\ \E g \in grants : grants' = grants \ {g}
          /\ UNCHANGED lease
    /\ UNCHANGED <<chain, view, staged, committed, up, synced, inherited, joined, next, seen>>

-----------------------------------------------------------------------------
Init ==
    /\ chain = [ver |-> 1, order |-> Replicas, st |-> [r \in R |-> "SERVING"]]
    /\ view = [r \in R |-> chain]
    /\ staged = [r \in R |-> None]
    /\ committed = [r \in R |-> None]
    /\ up = [r \in R |-> TRUE]
    /\ lease = [r \in R |-> FALSE]
    /\ grants = {}
    /\ synced = [r \in R |-> 0]
    /\ inherited = {}
    /\ joined = R
    /\ next = 1
    /\ seen = None

Next == Update \/ Peer \/ Read \/ Routing \/ Lease \/ Timer \/ Register \/ Crash \/ Expire

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* What must hold *)

TypeOK ==
    /\ \A r \in R : staged[r] = None \/ staged[r].v > 0
    /\ Cardinality({ r \in R : chain.st[r] = "SYNCING" }) <= 1
    /\ Len(chain.order) = Cardinality(R)

\* The chain knows who has the data.
Remembered == { r \in R : chain.st[r] \in {"SERVING", "LASTSRV"} } # {}

\* No replica would answer a read with something older than what anybody was told before, nor with
\* another value of the same version.
Linearizable ==
    \A r \in R : MayRead(r) /\ Answer(r) # <<>> =>
        LET a == Answer(r)[1] IN a.v > seen.v \/ a = seen

\* What was told is on every replica that the chain counts on.
Durable ==
    \A r \in R : chain.st[r] \in {"SERVING", "LASTSRV"} =>
        \/ committed[r].v >= seen.v
        \/ staged[r].v >= seen.v
=============================================================================
