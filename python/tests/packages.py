"""The most used packages of PyPI, imported and used by functions in sandboxes. `cargo xtask packages` installs and runs this."""

import importlib.metadata
from pathlib import Path

import pytest

import sublet

# For each package the modules to import and an expression that uses them.
USES = {
    "aiohttp": ("aiohttp", "aiohttp.FormData({'a': '1'})().size > 0"),
    "attrs": ("attr", "attr.asdict(attr.make_class('C', ['x'])(1)) == {'x': 1}"),
    "beautifulsoup4": ("bs4", "bs4.BeautifulSoup('<p>text</p>', 'html.parser').p.text == 'text'"),
    "boto3": ("boto3", "boto3.client('s3', region_name='eu-west-1', aws_access_key_id='a', aws_secret_access_key='b').meta.region_name == 'eu-west-1'"),
    "botocore": ("botocore.session", "'s3' in botocore.session.get_session().get_available_services()"),
    "cachetools": ("cachetools", "cachetools.LRUCache(2).maxsize == 2"),
    "certifi": ("certifi, os", "os.path.getsize(certifi.where()) > 1000"),
    "cffi": ("cffi", "cffi.FFI().sizeof('int') == 4"),
    "charset-normalizer": ("charset_normalizer", "charset_normalizer.from_bytes('ä'.encode()).best().encoding == 'utf_8'"),
    "click": ("click", "click.style('a', fg='red') != 'a'"),
    "colorama": ("colorama", "colorama.Fore.RED != ''"),
    "cryptography": ("cryptography.fernet", "cryptography.fernet.Fernet(cryptography.fernet.Fernet.generate_key()).encrypt(b'a') != b'a'"),
    "dask": ("dask.dataframe, pandas", "dask.dataframe.from_pandas(pandas.DataFrame({'a': range(100)}), npartitions=4).a.sum().compute() == 4950"),
    "filelock": ("filelock", "filelock.FileLock('/tmp/lock').acquire().lock.is_locked"),
    "fsspec": ("fsspec", "fsspec.filesystem('memory').ls('/') == []"),
    "httpx": ("httpx", "httpx.URL('http://a/b').path == '/b'"),
    "idna": ("idna", "idna.encode('ä.de') == b'xn--4ca.de'"),
    "importlib-metadata": ("importlib_metadata", "importlib_metadata.version('pip') != ''"),
    "jinja2": ("jinja2", "jinja2.Template('{{ a }}').render(a=1) == '1'"),
    "jmespath": ("jmespath", "jmespath.search('a', {'a': 1}) == 1"),
    "joblib": ("joblib", "joblib.Parallel(n_jobs=2)(joblib.delayed(abs)(-number) for number in range(3)) == [0, 1, 2]"),
    "jsonschema": ("jsonschema", "jsonschema.validate(1, {'type': 'integer'}) is None"),
    "lxml": ("lxml.etree", "lxml.etree.fromstring('<a/>').tag == 'a'"),
    "markupsafe": ("markupsafe", "str(markupsafe.escape('<')) == '&lt;'"),
    "matplotlib": ("matplotlib.pyplot", "matplotlib.pyplot.figure().savefig('/tmp/figure.png') is None"),
    "networkx": ("networkx", "networkx.path_graph(3).number_of_edges() == 2"),
    "numba": ("numba, numpy", "numba.njit(parallel=True)(lambda x: x + 1)(numpy.ones(3)).sum() == 6"),
    "numpy": ("numpy", "numpy.linalg.inv(numpy.eye(3)).trace() == 3"),
    "openpyxl": ("openpyxl", "openpyxl.Workbook().save('/tmp/book.xlsx') is None"),
    "packaging": ("packaging.version", "packaging.version.Version('1.10') > packaging.version.Version('1.9')"),
    "pandas": ("pandas", "pandas.Timestamp('2026-07-01', tz='Europe/Berlin').utcoffset().seconds == 7200"),
    "pillow": ("PIL.Image", "PIL.Image.new('RGB', (2, 2)).resize((4, 4)).size == (4, 4)"),
    "platformdirs": ("platformdirs", "platformdirs.user_cache_dir('a').startswith('/tmp')"),
    "pluggy": ("pluggy", "pluggy.PluginManager('a').project_name == 'a'"),
    "protobuf": ("google.protobuf.struct_pb2", "google.protobuf.struct_pb2.Value(number_value=1).SerializeToString() != b''"),
    "psutil": ("psutil", "psutil.virtual_memory().total > 0 and psutil.cpu_count(logical=False) == 1 and psutil.Process().create_time() > 0"),
    "pyarrow": ("pyarrow.compute", "pyarrow.compute.sum(pyarrow.array([1, 2])).as_py() == 3"),
    "pyasn1": ("pyasn1.type.univ", "pyasn1.type.univ.Integer(3) == 3"),
    "pycparser": ("pycparser", "pycparser.CParser().parse('int a;').ext[0].name == 'a'"),
    "pydantic": ("pydantic", "pydantic.create_model('M', a=(int, ...))(a='1').a == 1"),
    "pygments": ("pygments.lexers", "pygments.lexers.get_lexer_by_name('python').name == 'Python'"),
    "pyjwt": ("jwt", "jwt.decode(jwt.encode({'a': 1}, 'k' * 32), 'k' * 32, ['HS256']) == {'a': 1}"),
    "python-dateutil": ("dateutil.tz", "dateutil.tz.gettz('Europe/Berlin') is not None and dateutil.tz.tzlocal().utcoffset(None) is not None"),
    "pytz": ("pytz", "pytz.timezone('Europe/Berlin').zone == 'Europe/Berlin'"),
    "pyyaml": ("yaml", "yaml.safe_load('a: 1') == {'a': 1}"),
    "requests": ("requests", "requests.Request('GET', 'http://a/b').prepare().path_url == '/b'"),
    "rich": ("rich.text", "rich.text.Text('a').plain == 'a'"),
    "rsa": ("rsa", "len(rsa.newkeys(128)) == 2"),
    "s3transfer": ("s3transfer.futures", "s3transfer.futures.TransferMeta().size is None"),
    "scikit-learn": ("sklearn.linear_model", "sklearn.linear_model.LinearRegression(n_jobs=2).fit([[0], [1]], [0, 1]).coef_[0] > 0.99"),
    "scipy": ("scipy.optimize", "scipy.optimize.brentq(lambda x: x - 1, 0, 3) == 1"),
    "setuptools": ("setuptools", "setuptools.find_packages('/tmp') == []"),
    "six": ("six", "six.PY3"),
    "sqlalchemy": ("sqlalchemy", "sqlalchemy.create_engine('sqlite://').connect().execute(sqlalchemy.text('select 1')).scalar() == 1"),
    "tomlkit": ("tomlkit", "tomlkit.parse('a = 1')['a'] == 1"),
    "tqdm": ("tqdm", "list(tqdm.tqdm(range(3))) == [0, 1, 2]"),
    "typing-extensions": ("typing_extensions", "typing_extensions.TypedDict is not None"),
    "urllib3": ("urllib3", "urllib3.util.parse_url('http://a/b').path == '/b'"),
    "virtualenv": ("virtualenv", "virtualenv.__version__ != ''"),
    "wrapt": ("wrapt", "wrapt.ObjectProxy(3) == 3"),
    "yarl": ("yarl", "yarl.URL('http://a/b').path == '/b'"),
    "zipp": ("zipp", "zipp.Path is not None"),
}
PINNED = [line.partition("==")[0] for line in Path(__file__).with_name("packages.txt").read_text().split()]


def use(modules, expression):
    names = {"__name__": __name__}
    exec(f"import {modules}", names)
    return bool(eval(expression, names))


@pytest.fixture(scope="module")
def roomy():
    with sublet.local(memory="4GiB") as client, client.lease(memory="2GiB", wait=60) as lease:
        yield lease


def test_every_pinned_package_is_used():
    assert sorted(USES) == sorted(PINNED)
    assert len(PINNED) >= 60


@pytest.mark.parametrize("package", PINNED)
def test_a_function_uses(roomy, package):
    assert importlib.metadata.version(package)
    assert roomy.call(use, *USES[package])


kept = []


def keep(frame):
    kept.append(frame)


def is_kept(frame):
    return kept.pop().equals(frame)


@pytest.mark.parametrize("rows", [2, 500, 20_000])
def test_keeps_data_frames_after_call(roomy, rows):
    import pandas

    texts = [str(number) for number in range(rows)]
    columns = {"number": range(rows), "text": texts, "category": pandas.Categorical(["x", "y"] * (rows // 2))}
    frame = pandas.DataFrame({**columns, "time": pandas.date_range("2026-01-01", periods=rows), "ratio": [0.5] * rows})
    roomy.call(keep, frame)
    for _ in range(100):
        roomy.call(len, pandas.DataFrame({"other": [9.0] * rows, "another": [7] * rows}))
    assert roomy.call(is_kept, frame)
