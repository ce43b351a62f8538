# Random-interleaving model of all_gradients.cuh: barriers, rings, turns. Actors are generators that yield to be
# scheduled; a wait is `while not cond: yield`. Contents of buffers carry tags, checked at each use.
import random, sys
class Mbar:
    def __init__(s, n): s.n=n; s.pending=n; s.tx=0; s.phase=0
    def _try(s):
        if s.pending==0 and s.tx==0: s.phase+=1; s.pending=s.n
    def arrive(s):
        assert s.pending>0, "too many arrivals"; s.pending-=1; s._try()
    def expect(s,b):
        s.tx+=b; s.arrive()
    def complete(s,b): s.tx-=b; s._try()
    def ended(s,parity): # phase of this parity has ended
        return (s.phase & 1) != parity   # current phase parity != waited parity
class Named:
    def __init__(s): s.count=0; s.gen=0
    def arrive(s, k, need):
        s.count+=k; assert s.count<=need
        if s.count==need: s.count=0; s.gen+=1
def fill(c,slots): return (~(c//slots))&1
def empty(c,slots): return (c//slots)&1
class CTA:
    def __init__(s, idx, G, slots):
        s.G=G; s.idx=idx; s.KS=slots
        s.tile_full=[Mbar(1) for _ in range(2)]; s.tile_ending=[Mbar(1) for _ in range(2)]; s.tile_empty=[Mbar(8+1+2) for _ in range(2)]
        s.k_full=[Mbar(1) for _ in range(slots)]; s.v_full=[Mbar(1) for _ in range(slots)]
        s.k_empty=[Mbar(8) for _ in range(slots)]; s.v_empty=[Mbar(8) for _ in range(slots)]
        s.q_full=[Mbar(33) for _ in range(2)]; s.d_full=[Mbar(33) for _ in range(2)]
        s.q_empty=[Mbar(2) for _ in range(2)]; s.d_empty=[Mbar(2) for _ in range(2)]
        s.dq_full=[Mbar(8) for _ in range(2)]; s.dq_empty=[Mbar(1) for _ in range(2)]
        s.tiles=[None,None]; s.k=[None]*slots; s.v=[None]*slots; s.q=[None]*2; s.d=[None]*2
        s.ds=[None,None]; s.dq=[[None]*8 for _ in range(2)]
        s.named={i:Named() for i in range(1,6)}
        s.issued=[[0]*4,[0]*4]
    def wait(s,b,p):
        while not b.ended(p): yield
    def finder(s):
        G=s.G; c=0
        while True:
            sl=c%2
            yield from s.wait(s.tile_empty[sl], fill(c,2))
            if c>0: yield from s.wait(s.tile_ending[(c-1)%2], empty(c-1,2))
            while True:
                n=G.next; G.next+=1; yield
                if n>=G.count: t=None; break
                t=G.find(n)
                if t: break
            s.tiles[sl]=t
            s.tile_full[sl].arrive()
            if t is None: return
            ks=c%s.KS
            yield from s.wait(s.k_empty[ks], fill(c,s.KS)); s.k[ks]=t; yield; s.k_full[ks].arrive()
            yield from s.wait(s.v_empty[ks], fill(c,s.KS)); s.v[ks]=t; yield; s.v_full[ks].arrive()
            c+=1
    def tma(s, arr, slot, tag, bar):  # completes later
        for _ in range(random.randint(0,6)): yield
        arr[slot]=tag; bar.complete(1)
    def copier(s):
        c=0; st=0
        while True:
            sl=c%2
            yield from s.wait(s.tile_full[sl], empty(c,2))
            t=s.tiles[sl]
            if t is None: return
            nb=t['blocks']; last=4; rem=nb if s.G.causal else 0
            if rem<last: s.tile_ending[sl].arrive()
            for i in range(nb):
                if rem==last: s.tile_ending[sl].arrive()
                rem-=1
                for arr,e,f in ((s.q,s.q_empty,s.q_full),(s.d,s.d_empty,s.d_full)):
                    x=st%2
                    yield from s.wait(e[x], fill(st,2))
                    arr[x]='loading'
                    f[x].expect(1); s.G.spawn(s.tma(arr,x,(t['n'],i),f[x]))
                    for _ in range(32): f[x].arrive()
                    yield
                st+=1
            s.tile_empty[sl].arrive(); c+=1
    def sync(s,i,k,need):
        b=s.named[i]; g=b.gen; b.arrive(k,need)
        while b.gen==g: yield
    def mma_wait(s,c,w,pending=0):
        n=s.issued[c][w]-pending
        while min(s.issued[c])<n: yield
    # a consumer warpgroup: 4 warps, each an actor; wgmma is modelled as reads at issue and at wait
    def consumer(s,c,w):
        s.named[5-c].arrive(32,256)
        tc=0; st=0
        while True:
            sl=tc%2
            yield from s.wait(s.tile_full[sl], empty(tc,2))
            t=s.tiles[sl]
            if t is None: break
            ks=tc%s.KS
            yield from s.wait(s.k_full[ks], empty(tc,s.KS)); yield from s.wait(s.v_full[ks], empty(tc,s.KS))
            for i in range(t['blocks']):
                x=st%2; tag=(t['n'],i)
                yield from s.wait(s.q_full[x], empty(st,2)); assert s.q[x]==tag and s.k[ks] is t, (s.q[x],tag)
                s.issued[c][w]+=1; yield
                yield from s.wait(s.d_full[x], empty(st,2)); assert s.d[x]==tag and s.v[ks] is t
                s.issued[c][w]+=1; yield; yield from s.mma_wait(c,w,1); yield; yield from s.mma_wait(c,w)
                assert s.q[x]==tag and s.d[x]==tag
                yield from s.sync(4+c,32,256)
                if s.ds[c] is None or s.ds[c][0]!=tag: s.ds[c]=(tag,set())
                s.ds[c][1].add(w)
                s.issued[c][w]+=1; yield
                yield from s.sync(3,32,256)
                for u in (0,1): assert s.ds[u][0]==tag and len(s.ds[u][1])==4, "dS"
                assert s.d[x]==tag
                s.issued[c][w]+=1; yield
                yield from s.mma_wait(c,w,1)
                if w==0: s.d_empty[x].arrive()   # after dV
                assert s.q[x]==tag
                s.issued[c][w]+=1; yield
                yield from s.mma_wait(c,w,1)
                for u in (0,1): assert s.ds[u][0]==tag and len(s.ds[u][1])==4, "dS overwritten"
                assert s.k[ks] is t
                s.named[5-c].arrive(32,256)
                b=st%2
                yield from s.wait(s.dq_empty[b], fill(st,2))
                s.dq[b][4*c+w]=tag; yield; s.dq_full[b].arrive()
                yield from s.mma_wait(c,w)
                if w==0: s.q_empty[x].arrive()
                st+=1
            s.k_empty[ks].arrive()
            yield from s.sync(1+c,32,128)
            assert s.v[ks] is t
            yield
            s.v_empty[ks].arrive(); s.tile_empty[sl].arrive(); tc+=1
        yield from s.sync(4+c,32,256)
    def sender(s,b):
        tc=0; before=0
        while True:
            sl=tc%2
            yield from s.wait(s.tile_full[sl], empty(tc,2))
            t=s.tiles[sl]
            if t is None: return
            first=(before+b)%2
            for i in range(first,t['blocks'],2):
                n=before+i; assert n%2==b
                yield from s.wait(s.dq_full[b], empty(n,2))
                turn=t['turn'](i)
                key=(t['cell'],i)
                while s.G.added.get(key,0)<turn: yield
                assert s.G.added.get(key,0)==turn
                for _ in range(random.randint(0,3)): yield
                assert all(z==(t['n'],i) for z in s.dq[b]), (s.dq[b],(t['n'],i))
                s.dq_empty[b].arrive()
                for _ in range(random.randint(0,3)): yield
                s.G.added[key]=turn+1
            before+=t['blocks']; s.tile_empty[sl].arrive(); tc+=1
class Grid:
    def __init__(s, ctas, cells, keys, queries, N, causal, at_once, slots):
        s.next=0; s.causal=causal; s.added={}; s.actors=[]
        T=-(-keys//128); s.T=T; s.cells=cells; s.count=cells*T; s.at=at_once; s.N=N; s.keys=keys; s.queries=queries
        for i in range(ctas):
            c=CTA(i,s,slots)
            for g in [c.finder(),c.copier(),c.sender(0),c.sender(1)]+[c.consumer(x,w) for x in (0,1) for w in range(4)]: s.actors.append(g)
    def spawn(s,g): s.actors.append(g)
    def find(s,n):
        per=s.at*s.T; g=n//per; r=n%per; first=g*s.at
        w=s.at if first+s.at<=s.cells else s.cells-first
        cell=first+r%w; k=s.T-1-r//w
        off=128*k
        vis=s.queries if not s.causal else max(0, s.queries-max(0,off-(s.keys-s.queries)))
        later=s.T-1-k
        def turn(b):
            if not s.causal: return later
            x=(s.keys-s.queries)+s.queries-1-b*s.N
            return min(later,(x-off)//128)
        return dict(n=n,cell=cell,blocks=-(-vis//s.N),turn=turn)
    def run(s):
        steps=0; idle=0
        alive=s.actors
        while alive:
            i=random.randrange(len(alive))
            try: next(alive[i])
            except StopIteration: alive[i]=alive[-1]; alive.pop()
            steps+=1
            if steps>4_000_000: raise Exception(f"hang? {len(alive)} actors left, next {s.next}")
        blocks={}
        for n in range(s.count):
            t=s.find(n)
            for b in range(t['blocks']): blocks[(t['cell'],b)]=blocks.get((t['cell'],b),0)+1
        assert blocks==s.added
random.seed(int(sys.argv[1]) if len(sys.argv)>1 else 1)
for rep in range(14):
    args=dict(ctas=random.randint(1,4),cells=random.randint(1,4),keys=random.randint(1,900),queries=random.randint(1,900),N=random.choice([64,128]),causal=random.random()<.5,at_once=random.randint(1,3),slots=random.choice([1,2]))
    if args['causal']: args['queries']=min(args['queries'],args['keys'])
    g=Grid(**args); g.run(); print("ok",args,flush=True)
