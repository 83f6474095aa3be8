"""Lines of text, written for this example: sentences, and lines of forms."""

from __future__ import annotations

from random import Random

LATIN = (
    "The morning train leaves at seven from the second platform.",
    "Please keep this receipt until the goods have arrived.",
    "Rain is expected along the coast, with wind from the west.",
    "Her grandfather repaired clocks in a narrow shop by the river.",
    "All visitors have to sign in at the front desk.",
    "The library opens early on weekdays and late on Sundays.",
    "Store in a dry place and away from direct sunlight.",
    "Nobody had expected that the bridge would be finished in time.",
    "Turn the handle to the left until you hear a click.",
    "Two spoons of sugar, a cup of milk and a pinch of salt",
    "A good map shows what it leaves out.",
    "We thank everyone who took part in the survey.",
    "Chapter Four: The Lighthouse",
    "Do not open the cover while the motor is running.",
    "The committee meets again on the first Monday of March.",
    "Fresh bread, local cheese and a bottle of cider",
    "Questions are answered by e-mail within two days.",
    "The results were better than those of the year before.",
    "Mind the gap between the door and the step",
    "Seven children were playing football behind the school.",
)

CHINESE = (
    "请在收到货物以后保留这张收据",
    "图书馆周末上午九点开门",
    "明天下午有小雨，请带好雨伞",
    "电梯正在维修，请走楼梯",
    "本店所有水果当天新鲜送到",
    "孩子们在学校后面的操场上踢球",
    "他在河边的小店里修理钟表",
    "会议改到下星期三上午举行",
    "进入车间必须戴好安全帽",
    "这座桥比原来的计划早完工两个月",
    "请勿在机器运转时打开盖子",
    "早上七点的火车从第二站台出发",
    "存放在阴凉干燥的地方",
    "谢谢大家参加这次问卷调查",
    "第四章 海边的灯塔",
    "山上的樱花开了，游客越来越多",
    "欢迎光临，请排队等候",
    "今年的成绩比去年好得多",
    "老师让我们每天读半个小时的书",
    "小心台阶，注意脚下安全",
)

_LATIN_ITEMS = ("Paper A4", "Desk lamp", "Garden hose", "Green tea", "Copper wire", "Oak shelf")
_CHINESE_ITEMS = ("打印纸", "台灯", "绿茶", "铜线", "书架", "保温杯")
_STREETS = ("Mill Lane", "Station Road", "Harbour Street", "Park Avenue")
_ROADS = ("人民路", "解放街", "中山大道", "湖滨路")


def latin_line(random: Random) -> str:
    """Return a line of Latin text, mostly a sentence."""
    forms = (
        f"Invoice {random.randint(1000, 9999)}-{random.randint(10, 99)}",
        f"{random.choice(_LATIN_ITEMS)}: {random.randint(2, 60)} pieces, {_price(random)} EUR",
        f"{random.randint(1, 250)} {random.choice(_STREETS)}, floor {random.randint(1, 9)}",
        f"Tel. {random.randint(200, 999)} {random.randint(1000, 9999)} {random.randint(100, 999)}",
        f"Total: {_price(random)} USD, due on {random.randint(1, 28)} May {_year(random)}",
    )
    return random.choice(forms if random.random() < 0.4 else LATIN)


def chinese_line(random: Random) -> str:
    """Return a line of Chinese text, mostly a sentence."""
    forms = (
        f"发票编号：{random.randint(10**7, 10**8 - 1)}",
        f"{random.choice(_CHINESE_ITEMS)}{random.randint(2, 60)}件，单价{_price(random)}元",
        f"{random.choice(_ROADS)}{random.randint(1, 250)}号{random.randint(1, 9)}楼",
        f"日期：{_year(random)}年{random.randint(1, 12)}月{random.randint(1, 28)}日",
        f"合计{_price(random)}元，已付款",
    )
    return random.choice(forms if random.random() < 0.4 else CHINESE)


def _price(random: Random) -> str:
    return f"{random.randint(100, 99999) / 100:.2f}"


def _year(random: Random) -> int:
    return random.randint(1998, 2030)
