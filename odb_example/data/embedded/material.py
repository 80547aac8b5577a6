"""The raw material, parted into pools that share nothing: training, validation, benchmark.

Digits are parted one by one, photographs by bands of columns (so that no pixel of one pool's photograph is in
another's), words by list. Which records are validation follows from the default split; `odb_example.data.miniature`
asks for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, TypeVar

import numpy as np
from PIL import Image

from odb_example.data.embedded.dice import Dice
from odb_example.data.pixels import Grey, Pixels, resize
from odb_example.installed import installed

T = TypeVar("T")
Pool = Literal["training", "validation", "benchmark"]

# PNG files only: JPEG decoders differ by version. Name of the file, what it shows, and its wide name for captions.
PHOTOGRAPHS = {
    "astronaut": ("an astronaut", "an astronaut in an orange suit before a flag"),
    "chelsea": ("a cat", "the face of a ginger cat"),
    "coffee": ("a cup of coffee", "a cup of coffee on a wooden table"),
    "motorcycle_left": ("a motorcycle", "a motorcycle in a workshop"),
    "camera": ("a cameraman", "a man with a camera on a tripod"),
    "coins": ("coins", "old coins in rows"),
    "brick": ("a brick wall", "a wall of bricks"),
    "grass": ("grass", "blades of grass from above"),
    "gravel": ("gravel", "gravel on the ground"),
    "moon": ("the moon", "craters on the moon"),
    "ihc": ("stained tissue", "stained tissue under a microscope"),
    "page": ("a printed page", "a printed page with slanting light"),
}
_BANDS: dict[Pool, tuple[int, int]] = {"training": (0, 70), "validation": (70, 84), "benchmark": (84, 100)}

LATIN_WORDS = (
    "able acid acre also arch army atom aunt baby back bake ball band bank barn bath bead beam bean bear bell belt "
    "bend bike bird boat body bold bone book boot born bowl cake calm camp card care cart cash cave city clay club "
    "coal coat cold cook cool cord corn crew crop cube dawn desk dish door dove drum dust east easy edge even exit "
    "face fact farm fast film fire fish flag foam fold fork fort frog gate gift glue goat gold golf gray grid hand "
    "harp hawk heat hill home hook horn idea iron item jazz join jump kind king kite lake lamp land leaf lens lime "
    "apple beach berry bread brick bridge butter candle carpet castle cattle cheese cherry circle coffee copper "
    "corner cotton desert dinner doctor dragon engine family farmer father finger flower forest garden hammer harbor "
    "island jacket kettle ladder letter market mirror monkey mother museum needle number orange pencil pepper pillow "
    "planet pocket potato rabbit ribbon river rocket saddle sailor salmon school silver spider spring square summer "
    "sunset table temple thunder ticket tomato tower travel tunnel turtle valley velvet village violin walnut window "
    "winter wizard yellow airport balance balloon blanket cabinet captain chicken compass country curtain diamond "
    "dolphin emerald evening factory feather freedom gallery giraffe granite hammock harvest history horizon journey "
    "kitchen lantern leather library machine meadow measure monster morning mystery network orchard pattern penguin "
    "picture pilgrim pottery rainbow science shelter station student sunrise teacher theatre traffic uniform vehicle "
    "volcano weather whisper"
).split()
CHINESE_WORDS = (
    "中国 北京 上海 学习 数据 图片 文字 识别 模型 训练 结果 问题 答案 天气 今天 明天 春天 "
    "夏天 秋天 冬天 太阳 月亮 星星 大海 高山 河流 森林 花园 学校 老师 学生 朋友 家人 父亲 "
    "母亲 孩子 早上 中午 晚上 时间 地方 城市 乡村 道路 汽车 火车 飞机 自行车 电脑 电话 电视 "
    "电影 音乐 图书馆 博物馆 医院 医生 银行 超市 饭店 商店 公园 广场 动物 植物 苹果 香蕉 "
    "西瓜 葡萄 米饭 面条 牛奶 咖啡 茶叶 蔬菜 水果 红色 绿色 蓝色 黄色 白色 黑色 左边 右边 "
    "上面 下面 里面 外面 东方 西方 南方 北方 工作 休息 运动 足球 篮球 游泳 跑步 旅行 照片 "
    "书本 铅笔 桌子 椅子 窗户 房子 大门 钥匙 衣服 帽子 鞋子 雨伞 手机 科学 历史 地理 数学 "
    "语文 英语 物理 化学 生物 世界 国家 人民 社会 经济 文化 艺术 健康 快乐 幸福 平安 成功 "
    "希望 未来 机场 车站 地铁 出租车 办公室"
).split()


@dataclass(frozen=True, slots=True)
class Digit:
    """One handwritten digit of scikit-learn's 8x8 set (UCI ML, BSD-3). ``ink`` has shape (8, 8), 0 to 255."""

    number: int
    value: int
    ink: Grey


@dataclass(frozen=True, slots=True)
class Material:
    """What one pool may draw from."""

    pool: Pool
    digits: tuple[tuple[Digit, ...], ...]  # by value
    photographs: dict[str, Pixels]
    latin: tuple[str, ...]
    chinese: tuple[str, ...]


@cache
def material(pool: Pool) -> Material:
    """The pool's share of everything. Loaded once a process."""
    return Material(
        pool=pool,
        digits=tuple(tuple(digit for digit in _digits()[pool] if digit.value == value) for value in range(10)),
        photographs={name: _band(name, pool) for name in PHOTOGRAPHS},
        latin=tuple(parted(LATIN_WORDS, "latin")[pool]),
        chinese=tuple(parted(CHINESE_WORDS, "chinese")[pool]),
    )


def parted(values: Sequence[T], name: str) -> dict[Pool, list[T]]:
    """Part ``values`` once and for all: 72% training, 10% validation, 18% benchmark, mixed by a fixed seed."""
    mixed = Dice("pools", name).shuffled(values)
    first, second = len(mixed) * 72 // 100, len(mixed) * 82 // 100
    return {"training": mixed[:first], "validation": mixed[first:second], "benchmark": mixed[second:]}


@cache
def _digits() -> dict[Pool, list[Digit]]:
    # A line a digit: 64 values of 0 to 16, then which digit it is.
    table = np.loadtxt(installed("sklearn", "datasets", "data", "digits.csv.gz"), delimiter=",", dtype=np.int64)
    inks = (table[:, :64].reshape(-1, 8, 8) * 255 // 16).astype(np.uint8)
    every = [Digit(number, int(value), inks[number]) for number, value in enumerate(table[:, 64])]
    return parted(every, "digits")


def _band(name: str, pool: Pool) -> Pixels:
    """The pool's columns of a photograph at half its size, shape (height, band, 3)."""
    whole = np.asarray(Image.open(installed("skimage", "data", f"{name}.png")).convert("RGB"))
    width = whole.shape[1]
    first, last = _BANDS[pool]
    band = whole[:, width * first // 100 : width * last // 100]
    return resize(band, band.shape[0] // 2, band.shape[1] // 2)
